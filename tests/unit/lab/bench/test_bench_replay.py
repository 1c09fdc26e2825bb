"""The replay benchmark: a learner whose volunteers outrun it, and the cost of a replay."""

from __future__ import annotations

import pytest

from p2prl.errors import ConfigError
from p2prl_lab.bench.replay import outrun_learner
from p2prl_lab.bench.replay.outrun_learner import OutrunConfig, measure_outrun_learner
from p2prl_lab.bench.replay.replay_cost import DEMANDED, MODELS, ReplayCostConfig


def test_outrun_learner_settles_every_group_and_accounts_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outrun_learner, "_WIDTH", 48)
    monkeypatch.setattr(outrun_learner, "_LAYERS", 1)
    report = measure_outrun_learner(OutrunConfig(updates=3, groups_per_update=2))
    assert report.updates == 3
    assert 6 <= report.groups_settled <= report.groups_stored <= 9
    shares = (report.busy, report.publishing, report.checkpoint, report.waiting_groups, report.waiting_replay)
    assert sum(shares) == pytest.approx(1.0)
    assert report.busy > 0.0
    assert report.met is (report.busy >= outrun_learner.BUSY_BOUND)


def test_illegal_settings_are_refused() -> None:
    for change in ({"models": ("7B",)}, {"batches": (0,)}, {"new_tokens": 0}, {"repeats": 0}):
        with pytest.raises(ConfigError):
            ReplayCostConfig(**change)
    with pytest.raises(ConfigError):
        OutrunConfig(updates=1)
    assert set(ReplayCostConfig().models) == set(MODELS)
    assert DEMANDED[0] in MODELS
    assert DEMANDED[1] in ReplayCostConfig().batches
