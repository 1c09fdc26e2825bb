"""`docs/scorers.md` names every scorer and option, and its examples score what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.tasks.scorers.build import build_scorer
from p2prl.tasks.scorers.reasoning_gym_scorer import EXECUTES_ANSWERS
from p2prl.tasks.scorers.scorer_options import read_length_penalty, scoring_from_options
from p2prl.tasks.scorers.spec import scoring_spec
from p2prl.tasks.scorers.spec_options import SCORER_OPTIONS

TEXT = (Path(__file__).parents[4] / "docs/scorers.md").read_text()


def table(header: str) -> list[list[str]]:
    lines = TEXT.splitlines()
    start = lines.index(header) + 2
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    return [
        [cell.strip().removeprefix("`").removesuffix("`") for cell in line[1:-1].split(" | ")]
        for line in lines[start:end]
    ]


@pytest.mark.parametrize("row", table("| scorer | answer | completion | score |"))
def test_examples(row: list[str]) -> None:
    text, answer, completion, value = row
    scorer = build_scorer(scoring_spec(scoring_from_options([text])[0]), None)
    assert scorer.score({"answer": answer}, completion, True) == float(value)


def test_every_scorer_and_option_is_named() -> None:
    named = {row[0] for row in table("| scorer | gives 1 if |")}
    assert named | {"math-verify", "reasoning-gym", "verifiers", "function"} == set(SCORER_OPTIONS)
    for option, scorers, _ in table("| option | of | meaning |"):
        name = option.partition("=")[0]
        owners = {scorer for scorer in named if name in SCORER_OPTIONS[scorer]}
        if scorers == "all":
            assert owners == named
        elif scorers.startswith("all but"):
            assert owners == named - {"format"}
        else:
            assert owners == {scorer.strip("` ") for scorer in scorers.split(",")}, name
    options = {row[0].partition("=")[0] for row in table("| option | of | meaning |")}
    assert options == {name for scorer in named for name in SCORER_OPTIONS[scorer]}


def test_every_refused_dataset_is_named() -> None:
    assert all(f"`{name}`" in TEXT for name in EXECUTES_ANSWERS)


def test_length_penalties() -> None:
    head, line = (
        next(line for line in TEXT.splitlines() if line.startswith(start)) for start in ("| tokens", "| `512")
    )
    tokens, values = ([cell.strip() for cell in row.split("|")[2:-1]] for row in (head, line))
    penalty = read_length_penalty("512:128")
    assert [penalty.of(int(t)) for t in tokens] == [float(v.replace("−", "-")) for v in values]
