"""Marks: when a run, or a contributor, first passed a round number of groups, tokens or people. Pure.

Each is dated by the receipt that passed it, once: a date that moved with later receipts would make every reader of the
feed see old news again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

GROUPS = tuple(10**power for power in range(1, 13))
PEOPLE = (10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000)
TOKENS = tuple(10**power for power in range(5, 16))

OWN_GROUPS = (100, 1_000, 10_000, 100_000, 1_000_000)
"""Groups at which a contributor is named: the first takes a small GPU an evening."""

RunMarks = Mapping[tuple[str, int], int]
"""By what was counted (`groups`, `tokens`, `people`) and the number passed: when the learner signed the receipt, ms."""


class RunMarksSoFar:
    """Marks of the whole run, in the order of the ledger. A mark that was passed stays."""

    def __init__(self) -> None:
        self._groups = self._tokens = 0
        self._people = 0
        self._marks: dict[tuple[str, int], int] = {}

    def credited(self, tokens: int, sent_ms: int) -> None:
        """One more credited group."""
        if not self._groups:
            self._marks["groups", 1] = sent_ms
        self._pass("groups", GROUPS, self._groups, self._groups + 1, sent_ms)
        self._pass("tokens", TOKENS, self._tokens, self._tokens + tokens, sent_ms)
        self._groups, self._tokens = self._groups + 1, self._tokens + tokens

    def people(self, number: int, sent_ms: int) -> None:
        """The number of contributors with a receipt. A smaller one, as when two turn out to be one, changes nothing."""
        self._pass("people", PEOPLE, self._people, number, sent_ms)
        self._people = max(self._people, number)

    def state(self) -> RunMarks:
        """The marks so far."""
        return MappingProxyType(dict(self._marks))

    def _pass(self, what: str, marks: tuple[int, ...], before: int, after: int, sent_ms: int) -> None:
        for mark in passed(marks, before, after):
            self._marks[what, mark] = sent_ms


def own_marks(times_ms: Iterable[int]) -> dict[int, int]:
    """The marks of one contributor, from when its credited groups were signed for, in any order."""
    ordered = sorted(times_ms)
    return {mark: ordered[mark - 1] for mark in OWN_GROUPS if mark <= len(ordered)}


def passed(marks: tuple[int, ...], before: int, after: int) -> list[int]:
    """The highest of the marks that were passed at once, or none."""
    return [mark for mark in marks if before < mark <= after][-1:]
