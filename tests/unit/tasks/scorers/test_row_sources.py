"""Sources that a library makes, where the name of a file is expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.config.data_options import DataOptions, data_plans
from p2prl.errors import ConfigError
from p2prl.tasks.data.checked_rows import CheckedRows
from p2prl.tasks.data.data_source import open_source
from p2prl.tasks.scorers.row_sources import GeneratedRows, is_generated, source_name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("reasoning-gym:leg_counting", "leg_counting"),
        ("reasoning-gym:chain_sum?min_terms=2,leg_counting?size=20&seed=1", "chain_sum-leg_counting"),
        ("verifiers:my-taskset?size=3", "my-taskset"),
    ],
)
def test_names(source: str, name: str) -> None:
    assert is_generated(source)
    assert source_name(source) == name


def test_files_are_no_such_source() -> None:
    assert not is_generated("train.jsonl")
    assert not is_generated("gym:x")
    with pytest.raises(ConfigError, match="executes the text"):
        list(open_source(Path("reasoning-gym:countdown")).rows())


@pytest.mark.extra
def test_as_data_of_a_run() -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym")
    source = "reasoning-gym:chain_sum,leg_counting?size=3&seed=1"
    (plan,) = data_plans(DataOptions(data=[f"{source}@2"], scorers=["reasoning-gym"]))
    assert (plan.task, plan.weight) == ("chain_sum-leg_counting", 2.0)
    opened = open_source(plan.path)
    assert isinstance(opened, GeneratedRows)
    checked = list(CheckedRows(opened, plan))
    assert opened.share_done == 1.0
    assert [row.columns["reasoning_gym"]["dataset"] for row in checked] == ["chain_sum", "leg_counting"] * 3
    assert all(row.columns["answer"] == row.columns["reasoning_gym"]["answer"] for row in checked)
    assert checked[1].place.endswith("row 2")
