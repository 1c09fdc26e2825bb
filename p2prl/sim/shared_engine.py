"""One model shared by the engines of all simulated peers, so that a swarm fits into one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blake3 import blake3

from p2prl.models.engine_port import Engine, Generation, GenerationRequest, Scored, StagedWeights, Weights
from p2prl.models.transformers_engine import UNNAMED
from p2prl.protocol.rollout_group import EngineClass

_STAGED_KEPT = 8
"""Checked policies kept: simulated peers sample with the same few versions."""


class SharedModel:
    """The model behind every simulated peer's engine. A policy is checked once, and copied in when it changes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._staged: dict[tuple[int, bytes], StagedWeights] = {}
        self._in_engine: StagedWeights | None = None

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Check a policy, unless it has been checked already."""
        data = bytes(weights)
        name = version, blake3(data).digest()
        if name not in self._staged:
            if len(self._staged) == _STAGED_KEPT:
                del self._staged[next(iter(self._staged))]
            self._staged[name] = self.engine.stage(data, version)
        return self._staged[name]

    def claim(self, staged: StagedWeights) -> Engine:
        """The engine, with this policy loaded."""
        if self._in_engine is not staged:
            self._in_engine = None
            self.engine.swap(staged)
            self._in_engine = staged
        return self.engine


class SharedEngine:
    """A simulated peer's engine: loads the peer's policy before each computation, as if it had its own model."""

    def __init__(self, model: SharedModel) -> None:
        self._model = model
        self._staged: StagedWeights | None = None

    @property
    def engine_class(self) -> EngineClass:
        """The shared engine's class."""
        return self._model.engine.engine_class

    def load_weights(self, weights: Weights) -> None:
        """Load a policy."""
        self.swap(self.stage(weights, UNNAMED))

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Check a policy, with the shared engine's layout."""
        return self._model.stage(weights, version)

    def swap(self, staged: StagedWeights) -> None:
        """Load a checked policy."""
        self._staged = staged
        self._claim()

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        should_stop: Callable[[], bool] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> list[Generation]:
        """Sample under this peer's weights."""
        return self._claim().generate(requests, should_stop=should_stop, on_step=on_step)

    def replay(self, requests: Sequence[GenerationRequest], token_ids: Sequence[Sequence[int]]) -> list[Scored]:
        """Replay under this peer's weights."""
        return self._claim().replay(requests, token_ids)

    def _claim(self) -> Engine:
        assert self._staged is not None
        return self._model.claim(self._staged)
