"""Weighted sums, and values that cannot be rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.tasks.scorers.answer_scorer import Composite, ScorerValueError, Weighted
from p2prl.tasks.scorers.build import RowCheck, build_scorer


@dataclass(frozen=True)
class Constant:
    value: float | None

    def score(self, row: Any, completion: str, finished: bool) -> float | None:
        return self.value


def total(*terms: tuple[float, float]) -> float | None:
    composite = Composite(terms=tuple(Weighted(name="x", weight=w, scorer=Constant(v)) for w, v in terms))
    return composite.score({}, "", True)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-2, 2)), min_size=1, max_size=8))
def test_weighted_sum(terms: list[tuple[float, float]]) -> None:
    assert total(*terms) == pytest.approx(sum(w * v for w, v in terms))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 100.5, -100.5])
def test_impossible_values(value: float) -> None:
    with pytest.raises(ScorerValueError, match="the scorer 'x' returned"):
        total((0.001, value))


@pytest.mark.parametrize(("values", "score"), [((None, 2.0), 2.0), ((0.0, None), 0.0), ((None, None), None)])
def test_terms_without_a_score_add_nothing(values: tuple[float | None, ...], score: float | None) -> None:
    terms = tuple(Weighted(name="x", weight=1.0, scorer=Constant(value)) for value in values)
    composite = Composite(terms=terms)
    assert composite.score({}, "", True) == score
    assert composite.parts({}, "", True) == values


def test_parts_have_their_weights_and_add_up() -> None:
    terms = tuple(Weighted(name="x", weight=weight, scorer=Constant(1.5)) for weight in (2.0, -0.5))
    composite = Composite(terms=terms)
    assert composite.parts({}, "", True) == (3.0, -0.75)
    assert composite.score({}, "", True) == 2.25


def test_the_sum_is_bounded_too() -> None:
    assert total((1.0, 100.0)) == 100.0
    assert total((1.0, -100.0)) == -100.0
    with pytest.raises(ScorerValueError, match="weighted sum"):
        total((1.0, 100.0), (1.0, 0.5))
    with pytest.raises(ScorerValueError, match="weighted sum"):
        total((-1.0, 100.0), (-1.0, 0.5))


TWO = '{"rewards":[{"scorer":"number","weight":1.0},{"column":"unit","scorer":"contains","weight":-0.25}]}'


@pytest.mark.parametrize(("text", "value"), [("5 kg", 0.75), ("5", 1.0), ("6 kg", -0.25), ("six", 0.0)])
def test_a_spec_of_two(text: str, value: float) -> None:
    assert build_scorer(TWO, None).score({"answer": "5", "unit": "kg"}, text, True) == value


def test_rows_of_a_spec_of_two() -> None:
    check = RowCheck(TWO)
    assert check.problem({"answer": "5"}) == "the column 'unit' is missing; it must hold a text or a number"
    assert check.problem({"answer": "5", "unit": "kg"}) == ""
    assert check.right_answer({"answer": "5", "unit": "kg"}) == "5"


def test_specs_that_cannot_be_built() -> None:
    with pytest.raises(RemoteProtocolError):
        build_scorer(TWO + " ", None)
    with pytest.raises(ConfigError, match="no scorer file"):
        build_scorer('{"rewards":[{"function":"f","scorer":"function","weight":1.0}]}', None)
    assert RowCheck('{"rewards":[{"function":"f","scorer":"function","weight":1.0}]}').right_answer({}) is None
