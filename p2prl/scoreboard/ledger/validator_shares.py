"""Shares of the validators' totals by owner: one row of the board for all validators of a person.

A change of a validator's totals counts for the owner of its machine at the time of the learner's newest signature
then. As with receipts, a statement that arrives later counts the machine's changes again from a compact record.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from p2prl.protocol.ownership import Ownership
from p2prl.scoreboard.ledger.total_rows import NO_STANDING, Validator


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change of a validator's totals."""

    verdict_ms: int = 0
    """Of a counted verdict: its time by the validator's clock."""
    passed_groups: int = 0
    failed_groups: int = 0
    disputed_groups: int = 0
    failed_checks: int = 0
    upheld_disputes: int = 0
    tokens: int = 0

    def added_to(self, row: Validator) -> Validator:
        """A validator's totals after this change."""
        sums = {name: getattr(row, name) + getattr(self, name) for name in _FIGURES}
        return replace(row, last_ms=max(row.last_ms, self.verdict_ms), **sums)


_FIGURES = ("passed_groups", "failed_groups", "disputed_groups", "failed_checks", "upheld_disputes", "tokens")
_COLUMNS = 2 + len(_FIGURES)


class ValidatorShares:
    """Totals of validators by owner and machine."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._log: dict[bytes, array[int]] = {}
        """By machine, `_COLUMNS` numbers a change: 64 bytes."""
        self._shares: dict[bytes, dict[bytes, Validator]] = {}
        """By machine, then by owner."""

    def add(self, machine: bytes, at_ms: int, change: Change) -> None:
        """Count a change of a machine's totals, as of a time."""
        row = (at_ms, change.verdict_ms, *(getattr(change, name) for name in _FIGURES))
        self._log.setdefault(machine, array("q")).extend(row)
        self._count(machine, row)

    def recount(self, machine: bytes) -> None:
        """Count a machine's changes again, after a statement about it."""
        log = self._log.get(machine, array("q"))
        self._shares.pop(machine, None)
        for begin in range(0, len(log), _COLUMNS):
            self._count(machine, tuple(log[begin : begin + _COLUMNS]))

    def rows(
        self, machines: Mapping[bytes, Validator], escrow: Callable[[bytes], Sequence[tuple[int, int]]]
    ) -> dict[bytes, dict[bytes, Validator]]:
        """The parts of the machines' totals by owner, then by machine. Each has the standing of its machine.

        `escrow` gives what a machine has in escrow: when the check was signed, and the tokens.
        """
        found: dict[bytes, dict[bytes, Validator]] = {}
        for machine, whole in machines.items():
            shares = self._shares[machine]
            for owner, share in shares.items():
                mine = (paid for at_ms, paid in escrow(machine) if self._ownership.owner_at(machine, at_ms) == owner)
                part = whole if len(shares) == 1 else replace(share, standing=whole.standing, escrow=tuple(mine))
                found.setdefault(owner, {})[machine] = part
        return found

    def _count(self, machine: bytes, row: tuple[int, ...]) -> None:
        at_ms, verdict_ms, *figures = row
        shares = self._shares.setdefault(machine, {})
        owner = self._ownership.owner_at(machine, at_ms)
        change = Change(verdict_ms=verdict_ms, **dict(zip(_FIGURES, figures, strict=True)))
        shares[owner] = change.added_to(shares.get(owner) or Validator(last_ms=verdict_ms))


def merged(parts: Mapping[bytes, Validator]) -> Validator:
    """An owner's row: the sum of its machines' parts. Standing belongs to a key, so a sum of several has none."""
    rows = list(parts.values())
    if len(rows) == 1:
        return rows[0]
    sums = {name: sum(getattr(row, name) for row in rows) for name in _FIGURES}
    escrow = tuple(tokens for row in rows for tokens in row.escrow)
    return Validator(last_ms=max(row.last_ms for row in rows), escrow=escrow, standing=NO_STANDING, **sums)
