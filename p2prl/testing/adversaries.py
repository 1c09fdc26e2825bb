"""Volunteers that lie, for the simulator and for tests over sockets: honest volunteers with one part replaced."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from p2prl.client.service import Volunteer
from p2prl.errors import ConfigError
from p2prl.models.engine_port import Engine, Generation, GenerationRequest, Scored, StagedWeights, Weights
from p2prl.models.group_work import Prepared
from p2prl.protocol.digests import DIGEST_BYTES, Digest
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.rollout_group import EngineClass


class FabricatingEngine:
    """Makes completions up without a forward pass: well-formed, plausible log-probs, any tokens."""

    def __init__(self, honest: Engine, vocabulary: int) -> None:
        self._honest = honest
        self._vocabulary = vocabulary
        self._dice = random.Random(0)  # noqa: S311 - a cheat's dice

    @property
    def engine_class(self) -> EngineClass:
        """Claims to be the honest engine."""
        return self._honest.engine_class

    def load_weights(self, weights: Weights) -> None:
        """Takes no weights: that is the saving it is after."""
        del weights

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Checks nothing either."""
        return StagedWeights(version=version, weights=weights, answer=Digest(bytes(DIGEST_BYTES)))

    def swap(self, staged: StagedWeights) -> None:
        """See `load_weights`."""
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
        """As the honest engine: cheats do not validate."""
        return self._honest.replay(requests, token_ids)

    def _make_up(self, request: GenerationRequest) -> Generation:
        length = 1 + self._dice.randrange(request.max_new_tokens)
        others = [token for token in range(self._vocabulary) if token not in request.stop_ids]
        body = [self._dice.choice(others) for _ in range(length - 1)]
        tokens = (*body, min(request.stop_ids))
        return Generation(tokens, tuple(-self._dice.random() for _ in tokens), finished=True)


def disguise(volunteer: Volunteer, adversary: str) -> None:
    """Turn a volunteer into an adversary by name. Raises `ConfigError` for an unknown one."""
    if adversary != "fabricate":
        raise ConfigError(f"no adversary is called {adversary!r}", remedy="Adversaries: fabricate.")
    honest_prepare = volunteer.bootstrap.prepare

    def prepare(manifest: RunManifest, files: Mapping[str, Path]) -> Prepared:
        prepared = honest_prepare(manifest, files)
        return replace(prepared, engine=FabricatingEngine(prepared.engine, vocabulary=16))

    volunteer.bootstrap.prepare = prepare
