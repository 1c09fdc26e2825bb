"""A flood of fresh keys against a whole swarm, model included: as much honest work is trained on as without it.

Two runs, so several seconds: only a swarm with its journal, replays and network shows that the parts work together. The
other floods are in `tests/unit/learner/test_floods.py`, without a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.sim import simulated_run
from p2prl_lab.bench.trust.floods import FloodPlan, flood_row, trained_groups

PLAN = FloodPlan(
    volunteers=2,
    keys=12,
    groups_per_key=20,
    begins_s=40.0,
    lasts_s=45.0,
    recovery_s=15.0,
    after_s=30.0,
    sample_seconds=2.0,
    replayed_tokens_s=4_000.0,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_fabricated_groups_of_fresh_keys_cost_no_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_run, "_EVALUATION_PROMPTS", 8)
    quiet, flooded = (
        trained_groups(PLAN, tiny_model("chain4", seed=0), tmp_path / (flood or "quiet"), flood)
        for flood in ("", "fabricated")
    )
    row = flood_row(PLAN, "fabricated", quiet, flooded)
    assert len(quiet) > 80
    assert row.honest_share_during >= 0.95
    assert row.honest_share_after == pytest.approx(1.0, abs=0.02)
    assert row.newcomer_share_during == 0.0
