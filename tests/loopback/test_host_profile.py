"""The profile of a host: real ranks, a model of two layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.update_engine import EngineSettings
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.planning.rank_plans import fit, rank_plans
from p2prl.planning.rank_profile import Host, profile

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]


def test_every_plan_that_the_model_can_be_trained_by_is_timed(tmp_path: Path) -> None:
    """The tiny model has one key-value head, which two tensor ranks cannot share."""
    made = tiny_model(seed=3)
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    settings = EngineSettings(temperature=1.0, optimizer=OptimizerConfig())
    host = Host(model=tmp_path, settings=settings, attention="sdpa", threads=2)
    found = profile(host, rank_plans(2), row_tokens=12)
    timed = {(each.plan.parallel.name, each.plan.parallel.zero) for each in found.probes}
    assert timed >= {("1", 2), ("dp2", 2), ("dp2", 3), ("pp2", 2)}
    assert all(each.seconds > 0.0 for each in found.probes)
    for name, zero in timed:
        of_plan = [each for each in found.probes if (each.plan.parallel.name, each.plan.parallel.zero) == (name, zero)]
        assert {each.plan.checkpointing for each in of_plan} == {False, True}
        assert sum(fit(of_plan)) > 0.0
    nothing = profile(host, rank_plans(2), row_tokens=12, budget_s=0.0)
    assert nothing.probes == []
