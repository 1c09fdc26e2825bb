"""Check of a data task's scorers before a run begins: a right answer must score higher than a wrong one.

A column of another name, an answer in another form or a pattern that matches nothing gives every completion the same
score. The run would look healthy and learn nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from p2prl.errors import ConfigError
from p2prl.models.rewards.scoring import AnswerScorer, ScoredAnswer, failure_kind
from p2prl.tasks.data.packed_data import PackedRows, Row
from p2prl.tasks.sandbox.batch import TIMEOUT
from p2prl.tasks.scorer_failure_texts import failure_remedy, failure_text

_ROWS = 16
"""Rows that are tried. One that tells answers apart is enough: a single row may have an answer no scorer can read."""

_LOOKED_AT = 256
"""Rows among which answers that differ are looked for."""

_ANSWER_COLUMNS = ("answer", "solution", "ground_truth", "target", "label")
_FORMS = ("{}", "#### {}", "\\boxed{{{}}}", "The answer is {}.", "<answer>{}</answer>")
"""Forms of an answer that a researcher's own function may read: bare, and as GSM8K, MATH, people and R1 write it."""

_FIRST_ANSWERS = ("0", "The answer is 1.", "I do not know.")
"""Answers that show whether a scorer keeps to its time, before it is tried on right ones."""

RightAnswer = Callable[[Row], str | None]
"""A completion that answers a row in the form its scorers read; None when they have no single one."""

_NOTHING_MADE = "Nothing was made; --force makes the run all the same."


def check_scorer(task: str, rows: PackedRows, count: int, right_answer: RightAnswer, scorer: AnswerScorer) -> str:
    """A notice for the user, or an empty text when the scorers tell answers apart.

    `ConfigError` when they give a row's own answer and another row's the same score, or fail on both, or give one
    answer two scores.
    """
    listed = [rows.row(number) for number in range(min(count, _LOOKED_AT))]
    known = [(row, right) for row in listed if (right := right_answer(row)) is not None]
    if known:
        pairs = _pairs([(row, [right]) for row, right in known])
    else:
        pairs = _pairs([(row, _forms(row)) for row in listed])
    if listed:
        _refuse_if_late(task, listed[0], scorer)
    tried, reversed_pairs, failures = 0, 0, []
    for row, right_texts, wrong_texts in islice(pairs, _ROWS):
        completions = [(text, True) for text in (*right_texts, *wrong_texts)]
        if not tried:
            scored = scorer.submit(task, row, completions * 2, account=b"").result()
            _refuse_two_scores(task, zip(scored[: len(completions)], scored[len(completions) :], strict=True))
            scored = scored[: len(completions)]
        else:
            scored = scorer.submit(task, row, completions, account=b"").result()
        failures += [each.failure for each in scored if each.failure]
        tried += len(scored)
        values, half = [each.value for each in scored], len(right_texts)
        if any(own > other for own, other in zip(values[:half], values[half:], strict=True)):
            return _told(task, tried, failures)
        reversed_pairs += any(own < other for own, other in zip(values[:half], values[half:], strict=True))
    if tried and len(failures) == tried:
        raise ConfigError(
            f"the scorer of {task} failed on all {tried} answers it was tried on: {failure_text(failures)}",
            remedy=f"{failure_remedy(failures)} {_NOTHING_MADE}",
        )
    if known and reversed_pairs:
        raise ConfigError(
            f"the scorer of {task} rewards wrong answers: a row's own answer scores less than another row's",
            remedy=f"Is a weight of --scorer below 0? If it is not, check --answer-column. {_NOTHING_MADE}",
        )
    if known and tried:
        raise ConfigError(
            f"the scorer of {task} cannot tell answers apart: a row's own answer scores no more than another row's",
            remedy=f"Check --scorer and --answer-column against a row of the data. {_NOTHING_MADE}",
        )
    if failures:
        return _told(task, tried, failures)
    why = "all rows have the same right answer" if known else "it reads no answer in a usual form"
    return f"Whether the scorer of {task} tells answers apart could not be tried: {why}."


def _refuse_if_late(task: str, row: Row, scorer: AnswerScorer) -> None:
    """`ConfigError` when the first few answers run out of time: all others would, and each takes its whole time."""
    scored = scorer.submit(task, row, [(text, True) for text in _FIRST_ANSWERS], account=b"").result()
    failures = [each.failure for each in scored]
    if all(failure_kind(failure) == TIMEOUT for failure in failures):
        raise ConfigError(
            f"the scorer of {task} failed on the first {len(failures)} answers it was tried on:"
            f" {failure_text(failures)}",
            remedy=f"{failure_remedy(failures)} {_NOTHING_MADE}",
        )


def _told(task: str, tried: int, failures: Sequence[str]) -> str:
    """The failures as a notice; an empty text without any."""
    if not failures:
        return ""
    return (
        f"The scorer of {task} failed on {len(failures)} of {tried} answers it was tried on: {failure_text(failures)}."
    )


def _refuse_two_scores(task: str, pairs: Iterable[tuple[ScoredAnswer, ScoredAnswer]]) -> None:
    """`ConfigError` when an answer has another score the second time. Failures differ by themselves: they take time."""
    for first, second in pairs:
        if first.value != second.value and not (first.failure or second.failure):
            raise ConfigError(
                f"the scorer of {task} gives one answer two scores: {first.value:g}, then {second.value:g}",
                remedy="Let it use its arguments alone, neither a clock nor the system's random numbers: a validator "
                f"with another score takes honest work for forged. {_NOTHING_MADE}",
            )


def _pairs(answers: Sequence[tuple[Row, list[str]]]) -> Iterator[tuple[Row, list[str], list[str]]]:
    """Rows with their own answer and that of the next row whose answer differs, each in the same forms."""
    for number, (row, right) in enumerate(answers):
        for _, wrong in (*answers[number + 1 :], *answers[:number]):
            if right and wrong and wrong != right:
                yield row, right, wrong
                break


def _forms(row: Row) -> list[str]:
    """The answer of a row in the usual forms; empty when no column is called like an answer."""
    value = next((row[name] for name in _ANSWER_COLUMNS if isinstance(row.get(name), str | int | float)), None)
    return [] if value is None else [form.format(value) for form in _FORMS]
