"""Weights that a validator has asked for: again when they are gone, and only while a group waits for them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from p2prl.models.scorer_port import Scorer
from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import PolicyManifest
from p2prl.validator.replay_weights import ReplayWeights

FIRST, SECOND = Digest(bytes(32)), Digest(bytes([1]) * 32)


def test_weights_that_are_gone_again_are_asked_for_anew(tmp_path: Path) -> None:
    weights = ReplayWeights()
    assert weights.ask(FIRST, 0.0)
    assert not weights.ask(FIRST, 20.0)
    weights.add(FIRST, cast(PolicyManifest, None), tmp_path / "gone")
    assert not weights.load(cast(Scorer, SimpleNamespace(load_weights=bytes)), FIRST)
    assert weights.ask(FIRST, 1_000.0), "the groups must not be dropped because of the first request"
    assert not weights.is_overdue(FIRST, 1_020.0)
    assert weights.is_overdue(FIRST, 1_031.0)


def test_requests_are_forgotten_with_the_last_group_that_waits() -> None:
    weights = ReplayWeights()
    assert weights.ask(FIRST, 0.0)
    assert weights.ask(SECOND, 0.0)
    weights.forget_requests(besides=[SECOND])
    assert weights.ask(FIRST, 100.0), "a later group has its own request"
    assert not weights.ask(SECOND, 100.0)
