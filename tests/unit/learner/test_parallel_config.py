"""Plans of ranks: what each names, and what none may."""

from __future__ import annotations

import pytest

from p2prl.errors import ConfigError
from p2prl.learner.training.parallel_config import ParallelConfig


@pytest.mark.parametrize(
    ("plan", "data", "pipeline", "name"),
    [
        ("1", 1, 1, "1"),
        ("dp1", 1, 1, "1"),
        ("dp2", 2, 1, "dp2"),
        ("pp3", 1, 3, "pp3"),
        ("dp4pp2", 4, 2, "dp4pp2"),
        ("pp2dp4", 4, 2, "dp4pp2"),
        ("pp2dp1", 1, 2, "pp2"),
        ("dp64", 64, 1, "dp64"),
    ],
)
def test_a_plan_names_its_ranks(plan: str, data: int, pipeline: int, name: str) -> None:
    config = ParallelConfig(plan=plan)
    assert (config.data, config.pipeline, config.ranks, config.name) == (data, pipeline, data * pipeline, name)


@pytest.mark.parametrize("plan", ["", "2", "dp", "dp2 pp2", "dp=2", "xp2", "dp2dp2", "DP2", "dp-1", "2dp", "dp2x"])
def test_what_is_no_plan_is_refused_with_examples(plan: str) -> None:
    with pytest.raises(ConfigError, match="is no plan of ranks") as refused:
        ParallelConfig(plan=plan)
    assert "dp (data), pp (pipeline)" in (refused.value.remedy or "")


@pytest.mark.parametrize("plan", ["dp0", "pp0", "dp65", "dp8pp9"])
def test_a_plan_has_one_to_64_ranks(plan: str) -> None:
    with pytest.raises(ConfigError, match=r"1\.\.64 ranks"):
        ParallelConfig(plan=plan)
