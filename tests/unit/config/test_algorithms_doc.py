"""`docs/algorithms.md` documents every option: its tables are compared with the code."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

import pytest

from p2prl.algorithms.advantages import GROUPLESS, AdvantageKind
from p2prl.algorithms.aggregation import AggregationKind
from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, loss_by_name
from p2prl.config.loss_config import ReferenceTable
from p2prl.learner.training.loss_guards import GuardConfig
from p2prl.learner.training.probation import ProbationConfig
from tests.unit.algorithms.rival_oracles import PULLS

TEXT = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()


def rows(title: str) -> list[list[str]]:
    """Cells of the first table of a section, without its header."""
    section = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    table = section.split("\n|---")[1].split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def name(cell: str) -> str:
    return cell.strip().strip("`")


def defaults(kind: type[Any]) -> dict[str, str]:
    assert not any(each.default is MISSING for each in fields(kind))
    return {each.name: str(each.default) for each in fields(kind)}


def test_every_loss_is_documented_with_its_defaults() -> None:
    documented = {name(row[0]): row for row in rows("Losses")}
    assert set(documented) == set(BUILTIN_LOSSES)
    for loss, (_, minimised, paper, knobs, options, use) in documented.items():
        spec = loss_by_name(loss)
        assert knobs == f"{spec.advantage}, {spec.aggregation}", loss
        documented_defaults = dict(re.findall(r"`(\w+)` ([^,]+)", options))
        assert documented_defaults == defaults(spec.config_type), loss
        assert min(len(minimised), len(paper), len(use)) > 3, loss


def test_the_losses_that_move_on_equal_rewards_are_named() -> None:
    (named,) = re.findall(r"still move on it: (.*?)whatever the\s+reward", TEXT, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) == PULLS  # which the losses' gradients are tested against
    (groupless,) = re.findall(r"Its advantages are 0, except with the\s+advantages (.*?), which", TEXT, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", groupless)) == GROUPLESS


@pytest.mark.parametrize(("title", "kind"), [("Advantage", AdvantageKind), ("Aggregation", AggregationKind)])
def test_every_kind_is_documented(title: str, kind: Any) -> None:
    assert {name(row[0]) for row in rows(title)} == set(get_args(kind))


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("loss.guards", GuardConfig),
        ("loss.trust", ProbationConfig),
        ("loss.reference", ReferenceTable),
    ],
)
def test_every_key_is_documented_with_its_default(title: str, kind: type[Any]) -> None:
    shown = {"None": "off", "False": "false", "": "none"}
    expected = {key: shown.get(value, value) for key, value in defaults(kind).items()}
    assert {name(key): default for key, default, meaning in rows(title) if len(meaning) > 10} == expected
