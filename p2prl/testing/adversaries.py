"""Engines of dishonest volunteers, for simulations and for tests over sockets.

An adversary is an honest volunteer whose engine is replaced. To test another attack, write an engine and add it to
`ADVERSARIES`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from p2prl.models.engine_port import Engine, Generation, GenerationRequest, Scored, StagedWeights, Weights
from p2prl.protocol.digests import DIGEST_BYTES, Digest
from p2prl.protocol.rollout_group import EngineClass

_VOCABULARY = 16
"""Token ids below this exist in every model the project trains."""


class FabricatingEngine:
    """Fabricates completions without a forward pass: well-formed, with plausible log-probs."""

    def __init__(self, honest: Engine, vocabulary: int = _VOCABULARY) -> None:
        self._honest = honest
        self._vocabulary = vocabulary
        self._rng = random.Random(0)

    @property
    def engine_class(self) -> EngineClass:
        """Claims to be the honest engine."""
        return self._honest.engine_class

    def load_weights(self, weights: Weights) -> None:
        """Ignore the weights, since the cheat never computes."""
        del weights

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Accept any weights, unchecked."""
        return StagedWeights(version=version, weights=weights, answer=Digest(bytes(DIGEST_BYTES)))

    def swap(self, staged: StagedWeights) -> None:
        """Ignore the weights."""
        del staged

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        should_stop: Callable[[], bool] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> list[Generation]:
        """Random tokens, ended by a stop token."""
        del should_stop, on_step
        return [self._make_up(request) for request in requests]

    def replay(self, requests: Sequence[GenerationRequest], token_ids: Sequence[Sequence[int]]) -> list[Scored]:
        """Replay with the honest engine, since this cheat does not validate."""
        return self._honest.replay(requests, token_ids)

    def _make_up(self, request: GenerationRequest) -> Generation:
        length = 1 + self._rng.randrange(request.max_new_tokens)
        others = [token for token in range(self._vocabulary) if token not in request.stop_ids]
        body = [self._rng.choice(others) for _ in range(length - 1)]
        tokens = (*body, min(request.stop_ids))
        return Generation(tokens, tuple(-self._rng.random() for _ in tokens), finished=True)


ADVERSARIES: Mapping[str, Callable[[Engine], Engine]] = MappingProxyType({"fabricate": FabricatingEngine})
"""Name → engine made from the honest one."""
