"""Samplers of dishonest volunteers, for simulations and for tests over sockets.

An adversary is an honest volunteer whose sampler is replaced. To test another attack, write a sampler and add it to
`ADVERSARIES`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from p2prl.models.sampler_port import Generation, GenerationRequest, Sampler, StagedWeights, StepResult, Ticket, Weights
from p2prl.protocol.digests import DIGEST_BYTES, Digest
from p2prl.protocol.rollout_group import EngineClass

_VOCABULARY = 16
"""Token ids below this exist in every model the project trains."""


class FabricatingSampler:
    """Fabricates completions without a forward pass: well-formed, with plausible log-probs."""

    def __init__(self, honest: Sampler, vocabulary: int = _VOCABULARY) -> None:
        self._honest = honest
        self._vocabulary = vocabulary
        self._rng = random.Random(0)
        self._tickets = itertools.count()
        self._made: list[tuple[Ticket, Generation]] = []

    @property
    def engine_class(self) -> EngineClass:
        """Claims to be the honest sampler."""
        return self._honest.engine_class

    @property
    def in_flight(self) -> int:
        """Completions fabricated and not returned yet."""
        return len(self._made)

    @property
    def room(self) -> int:
        """As much as the honest sampler claims."""
        return self._honest.room

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Accept any weights, unchecked."""
        return StagedWeights(version=version, weights=weights, answer=Digest(bytes(DIGEST_BYTES)))

    def swap(self, staged: StagedWeights) -> None:
        """Ignore the weights."""
        del staged

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Ticket]:
        """Fabricate at once."""
        tickets = [next(self._tickets) for _ in requests]
        self._made += zip(tickets, map(self._make_up, requests), strict=True)
        return tickets

    def step(self) -> StepResult:
        """Return everything fabricated."""
        made, self._made = self._made, []
        return StepResult(sum(len(generation.token_ids) for _, generation in made), tuple(made))

    def cancel(self) -> None:
        """Drop everything fabricated."""
        self._made = []

    def sleep(self) -> None:
        """There is nothing to free."""
        self.cancel()

    def _make_up(self, request: GenerationRequest) -> Generation:
        length = 1 + self._rng.randrange(request.max_new_tokens)
        others = [token for token in range(self._vocabulary) if token not in request.stop_ids]
        body = [self._rng.choice(others) for _ in range(length - 1)]
        tokens = (*body, min(request.stop_ids))
        return Generation(tokens, tuple(-self._rng.random() for _ in tokens), finished=True)


ADVERSARIES: Mapping[str, Callable[[Sampler], Sampler]] = MappingProxyType({"fabricate": FabricatingSampler})
"""Name → sampler made from the honest one."""
