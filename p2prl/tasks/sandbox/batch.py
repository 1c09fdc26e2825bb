"""A call's answers on their way through a pool, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

TOO_LONG, ROW, TIMEOUT, MEMORY, ENDED, VALUE, ERROR = "too long", "row", "timeout", "memory", "ended", "value", "error"
"""First part of a failure, before its colon if it has one."""


@dataclass(frozen=True)
class ScoredAnswer:
    """The score of one completion."""

    value: float
    """Finite, within ±100; 0 after a failure."""
    failure: str = ""
    """Reason for a 0 that the scorer did not give: `too long`, `row`, `timeout`, `memory`, `ended` (the process died),
    `value: …` with what was returned (no number, not finite or too large) or `error: …` with the exception. Words after
    the colon may be a stranger's. Empty if the scorer gave the value."""
    parts: tuple[float | None, ...] = field(default=(), compare=False)
    """What each scorer of a sum added, None for one without a score; none after a failure, and of other scorers."""


class Batch:
    """The answers of one call. The pool's lock protects it."""

    def __init__(self, task: str, row: bytes, completions: Sequence[tuple[str, bool]]) -> None:
        """`row` is JSON already."""
        self.task = task
        self.row = row
        self.completions = tuple(completions)
        self.future: Future[tuple[ScoredAnswer, ...]] = Future()
        self._scores: dict[int, ScoredAnswer] = {}

    def set(self, number: int, answer: ScoredAnswer) -> None:
        """Store the score of an answer; the last one ends the call."""
        self._scores[number] = answer
        if len(self._scores) == len(self.completions) and not self.future.done():
            self.future.set_result(tuple(self._scores[n] for n in range(len(self.completions))))

    def fail(self, error: BaseException) -> None:
        """End the call with an error of this machine."""
        if not self.future.done():
            self.future.set_exception(error)
