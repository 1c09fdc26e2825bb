"""Check of a scorer before a run: it must tell a row's own answer from another's, in whichever form it reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from p2prl.errors import ConfigError
from p2prl.models.rewards.scorer_check import check_scorer
from p2prl.tasks.data.packed_data import PackedRows, Row, row_record
from p2prl.tasks.data.packed_file import PackedWriter
from p2prl.tasks.scorers.build import RowCheck, build_scorer

NUMBER = '{"rewards":[{"scorer":"number","weight":1.0}]}'
OTHER_COLUMN = '{"rewards":[{"column":"other","scorer":"number","weight":1.0}]}'
FUNCTION = '{"rewards":[{"function":"mine","scorer":"function","weight":1.0}]}'


class Answer(NamedTuple):
    value: float
    failure: str = ""
    parts: tuple[float | None, ...] = ()


class Scorer:
    """Scores in this process, as the sandbox would."""

    def __init__(self, score: Callable[[Row, str], float]) -> None:
        self._score = score
        self.rows = 0

    def submit(
        self, task: str, row: Row, completions: Sequence[tuple[str, bool]], *, account: bytes
    ) -> Future[list[Answer]]:
        assert all(finished for _, finished in completions)
        self.rows += 1
        answers = []
        for text, _ in completions:
            try:
                answers.append(Answer(self._score(row, text)))
            except ValueError as error:
                answers.append(Answer(0.0, f"error: {error}"))
        scored: Future[list[Answer]] = Future()
        scored.set_result(answers)
        return scored

    def close(self) -> None:
        pass


def packed(path: Path, rows: Sequence[dict[str, Any]]) -> PackedRows:
    with PackedWriter(path / "rows.packed") as writer:
        for row in rows:
            writer.append(row_record({"prompt": "p", "rendered": "p", **row}))
        writer.finish()
    return PackedRows(path / "rows.packed", rows=len(rows))


def check(path: Path, rows: Sequence[dict[str, Any]], spec: str, scorer: Scorer | None = None) -> str:
    if scorer is None:
        built = build_scorer(spec, None)
        scorer = Scorer(lambda row, text: built.score(row, text, True) or 0.0)
    return check_scorer("sums", packed(path, rows), len(rows), RowCheck(spec).right_answer, scorer)


SUMS = [{"answer": f"so it is\n#### {n}", "other": 7} for n in (4, 4, 5, 6)]


def test_a_scorer_that_reads_the_answers_passes(tmp_path: Path) -> None:
    assert check(tmp_path, SUMS, NUMBER) == ""


def test_a_scorer_that_gives_one_answer_two_scores_is_refused(tmp_path: Path) -> None:
    clock = count()
    with pytest.raises(ConfigError, match="one answer two scores: 3, then 5") as caught:
        check(tmp_path, SUMS, NUMBER, Scorer(lambda row, text: float(next(clock))))
    assert "arguments alone" in caught.value.remedy


def test_failures_on_the_way_are_told(tmp_path: Path) -> None:
    def score(row: Row, text: str) -> float:
        if row["answer"].endswith("4"):
            raise ValueError("four")
        return float(row["answer"].endswith(text))

    said = check(tmp_path, SUMS, NUMBER, Scorer(score))
    assert said == "The scorer of sums failed on 4 of 6 answers it was tried on: four."


def test_failures_are_told_where_nothing_else_can_be(tmp_path: Path) -> None:
    clock = count()

    def score(row: Row, text: str) -> float:
        if next(clock) % 5:
            raise ValueError("slow")
        return 0.0

    said = check(tmp_path, [{"answer": str(n)} for n in range(8)], FUNCTION, Scorer(score))
    assert said == "The scorer of sums failed on 64 of 80 answers it was tried on: slow."


def test_one_readable_row_is_enough(tmp_path: Path) -> None:
    answered = Scorer(lambda row, text: float(row["answer"].endswith("6") and text.strip().endswith("6")))
    assert check(tmp_path, SUMS, NUMBER, answered) == ""


def test_a_constant_score_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot tell answers apart") as caught:
        check(tmp_path, SUMS, NUMBER, Scorer(lambda row, text: 1.0))
    assert "--answer-column" in caught.value.remedy
    with pytest.raises(ConfigError, match="rewards wrong answers"):
        check(tmp_path, SUMS, NUMBER, Scorer(lambda row, text: -float(row["answer"].endswith(text.strip()[-1]))))


def test_a_scorer_that_always_fails_is_refused_with_its_error(tmp_path: Path) -> None:
    def fail(row: Row, text: str) -> float:
        raise ValueError("no module named numpy")

    with pytest.raises(ConfigError, match=r"failed on all 8 answers.*no module named numpy"):
        check(tmp_path, SUMS, NUMBER, Scorer(fail))


def test_answers_that_are_all_the_same_cannot_be_tried(tmp_path: Path) -> None:
    scorer = Scorer(lambda row, text: 1.0)
    assert "all rows have the same right answer" in check(tmp_path, SUMS, OTHER_COLUMN, scorer)
    assert scorer.rows == 1, "its time alone is tried"


@pytest.mark.parametrize("form", [r"#### (\d+)$", r"boxed\{(\d+)\}", r"^(\d+)$", r"<answer>(\d+)</answer>"])
def test_a_scorer_of_another_form_is_tried_with_the_usual_ones(tmp_path: Path, form: str) -> None:
    rows = [{"answer": str(n)} for n in range(8)]

    def score(row: Row, text: str) -> float:
        found = re.search(form, text)
        return float(found is not None and found[1] == row["answer"])

    assert check(tmp_path, rows, FUNCTION, Scorer(score)) == ""


def test_a_scorer_without_a_right_answer_is_only_told(tmp_path: Path) -> None:
    length = Scorer(lambda row, text: float(len(text)))
    notice = check(tmp_path, [{"answer": str(10 + n)} for n in range(40)], FUNCTION, length)
    assert "reads no answer in a usual form" in notice


def test_few_rows_are_tried(tmp_path: Path) -> None:
    scorer = Scorer(lambda row, text: 1.0)
    with pytest.raises(ConfigError):
        check(tmp_path, [{"answer": str(n)} for n in range(300)], NUMBER, scorer)
    assert scorer.rows == 1 + 16


class Late(Scorer):
    """Scores nothing in its time."""

    def __init__(self) -> None:
        super().__init__(lambda row, text: 0.0)
        self.answers = 0

    def submit(
        self, task: str, row: Row, completions: Sequence[tuple[str, bool]], *, account: bytes
    ) -> Future[list[Answer]]:
        self.answers += len(completions)
        late: Future[list[Answer]] = Future()
        late.set_result([Answer(0.0, "timeout")] * len(completions))
        return late


@pytest.mark.parametrize("spec", [NUMBER, FUNCTION])
def test_a_scorer_that_takes_too_long_is_refused_after_the_first_few_answers(tmp_path: Path, spec: str) -> None:
    late = Late()
    with pytest.raises(ConfigError, match="the first 3 answers it was tried on: it took longer than the 2 s") as caught:
        check(tmp_path, [{**row, "level": 1} for row in SUMS], spec, late)
    assert late.answers == 3
    assert "do not sleep" in caught.value.remedy


def test_a_scorer_that_rewards_wrong_answers_is_told_from_one_that_tells_none_apart(tmp_path: Path) -> None:
    built = build_scorer(NUMBER, None)
    turned = Scorer(lambda row, text: -float(built.score(row, text, True) or 0.0))
    with pytest.raises(ConfigError, match="rewards wrong answers") as caught:
        check(tmp_path, SUMS, NUMBER, turned)
    assert "below 0" in caught.value.remedy
