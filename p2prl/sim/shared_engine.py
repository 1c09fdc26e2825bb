"""One model shared by the samplers and scorers of all simulated peers, so that a swarm fits into one process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from blake3 import blake3

from p2prl.models.engines.transformers.policy_model import UNNAMED, PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.sampler_port import GenerationRequest, StagedWeights, StepResult, Ticket, Weights
from p2prl.models.sampling import sample_all
from p2prl.models.scorer_port import Scored
from p2prl.protocol.rollout_group import EngineClass

_STAGED_KEPT = 8
"""Checked policies kept: simulated peers sample with the same few versions."""


class SharedModel:
    """The model behind every simulated peer. A policy is checked once, and copied in when it changes."""

    def __init__(self, policy: PolicyModel) -> None:
        self.engine_class = policy.engine_class
        self.layers = policy.layers
        self._policy = policy
        self._sampler = TransformersSampler(policy)
        self._scorer = TransformersScorer(policy)
        self._staged: dict[tuple[int, bytes], StagedWeights] = {}
        self._in_model: StagedWeights | None = None

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Check a policy, unless it has been checked already."""
        data = bytes(weights)
        name = version, blake3(data).digest()
        if name not in self._staged:
            if len(self._staged) == _STAGED_KEPT:
                del self._staged[next(iter(self._staged))]
            self._staged[name] = self._policy.stage(data, version)
        return self._staged[name]

    def load(self, staged: StagedWeights) -> None:
        """Copy a policy in, unless the model holds it."""
        if self._in_model is not staged:
            self._in_model = None
            self._policy.swap(staged)
            self._in_model = staged

    def sampler(self, staged: StagedWeights) -> TransformersSampler:
        """The sampler, with this policy loaded."""
        self.load(staged)
        return self._sampler

    def scorer(self, staged: StagedWeights) -> TransformersScorer:
        """The scorer, with this policy loaded."""
        self.load(staged)
        return self._scorer


class SharedSampler:
    """A simulated volunteer's sampler. Each step decodes everything in flight to its end under the peer's own policy:
    computation takes no virtual time, and the shared model serves another peer next."""

    def __init__(self, model: SharedModel) -> None:
        self._model = model
        self._staged: StagedWeights | None = None
        self._tickets = itertools.count()
        self._queued: list[tuple[Ticket, GenerationRequest]] = []

    @property
    def engine_class(self) -> EngineClass:
        """The shared model's class."""
        return self._model.engine_class

    @property
    def in_flight(self) -> int:
        """See `Sampler.in_flight`."""
        return len(self._queued)

    @property
    def room(self) -> int:
        """See `Sampler.room`: memory is shared, so there is room for one batch."""
        return 0 if self._queued else 1

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Check a policy, with the shared model's layout."""
        return self._model.stage(weights, version)

    def swap(self, staged: StagedWeights) -> None:
        """Load a checked policy."""
        self._staged = staged
        self._model.load(staged)

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Ticket]:
        """See `Sampler.submit`."""
        queued = [(next(self._tickets), request) for request in requests]
        self._queued += queued
        return [ticket for ticket, _ in queued]

    def step(self) -> StepResult:
        """Sample everything in flight."""
        assert self._staged is not None
        queued, self._queued = self._queued, []
        made = sample_all(self._model.sampler(self._staged), [request for _, request in queued])
        ended = tuple((ticket, generation) for (ticket, _), generation in zip(queued, made, strict=True))
        return StepResult(sum(len(generation.token_ids) for generation in made), ended)

    def cancel(self) -> None:
        """See `Sampler.cancel`."""
        self._queued = []

    def sleep(self) -> None:
        """See `Sampler.sleep`."""
        self.cancel()
        self._staged = None


class SharedScorer:
    """A simulated learner's scorer."""

    def __init__(self, model: SharedModel) -> None:
        self._model = model
        self._staged: StagedWeights | None = None
        self.replayed_tokens = 0
        """Tokens of all prefills, prompts included."""

    @property
    def engine_class(self) -> EngineClass:
        """The shared model's class."""
        return self._model.engine_class

    @property
    def layers(self) -> int:
        """The shared model's layers."""
        return self._model.layers

    def load_weights(self, weights: Weights) -> None:
        """Load a policy."""
        self._staged = self._model.stage(weights, UNNAMED)
        self._model.load(self._staged)

    def sleep(self) -> None:
        """See `Scorer.sleep`."""
        self._staged = None

    def replay(
        self,
        requests: Sequence[GenerationRequest],
        token_ids: Sequence[Sequence[int]],
        probes: Sequence[Sequence[int]] = (),
    ) -> list[Scored]:
        """Replay under this peer's weights."""
        assert self._staged is not None
        self.replayed_tokens += sum(len(request.prompt_ids) for request in requests) + sum(map(len, token_ids))
        return self._model.scorer(self._staged).replay(requests, token_ids, probes)
