"""`p2prl init` by a process of its own: the warm start ends at the benchmark's accuracy."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.models.base_model.pretrained import load_pretrained
from tests.unit.models.chain4_accuracy import accuracy

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]


def test_recipe_ends_at_the_benchmarks_accuracy(warm_run: Path) -> None:
    loaded = load_pretrained(str(warm_run / "model"), dtype="float32")
    sampled = accuracy(loaded, prompts=2048)
    greedy = accuracy(loaded, prompts=2048, temperature=1e-3)
    assert 0.30 <= sampled <= 0.42
    assert sampled < greedy <= 0.60
