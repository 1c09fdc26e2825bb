"""Escrow: the newest credited work of a key, final only when enough further work is, and lost when the key cheats.

* A machine's newest `ESCROW_GROUPS` credited groups: the first group that is rejected because the key is excluded
  forfeits their tokens; the groups stay counted.
* A validator's newest `ESCROW_VERDICTS` verdicts that passed their check: a failed check voids them.

What is in escrow when the run ends is final.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from p2prl.scoreboard.ledger.total_rows import Person

ESCROW_GROUPS = 32
"""Who cheats in one of q groups loses 32 when it is found."""

ESCROW_VERDICTS = 8
"""Every verdict is checked, so few are enough: who lies in one of eight earns nothing."""


Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class Escrow(Generic[Key, Item]):
    """The newest items of each key."""

    def __init__(self, size: int) -> None:
        """`size` items of a key are in escrow; an older one is final."""
        self._size = size
        self._held: dict[Key, deque[Item]] = {}

    def add(self, key: Key, item: Item) -> None:
        """Put a key's newest item in escrow."""
        self._held.setdefault(key, deque(maxlen=self._size)).append(item)

    def held(self, key: Key) -> Sequence[Item]:
        """Items of a key in escrow, the newest last."""
        return self._held.get(key, ())

    def empty(self, key: Key) -> Sequence[Item]:
        """Take all items of a key out of escrow."""
        return self._held.pop(key, ())


def with_credited_tokens(machine: Person, tokens: int) -> Person:
    """The totals of a machine with the tokens of one more credited group, the newest in escrow."""
    escrow = (*machine.escrow, tokens)[-ESCROW_GROUPS:]
    return replace(machine, tokens=machine.tokens + tokens, escrow=escrow, escrow_tokens=sum(escrow))


def forfeited(machine: Person) -> Person:
    """The totals of a machine whose key is excluded: it loses what is in escrow."""
    lost = machine.escrow_tokens
    return replace(
        machine,
        tokens=machine.tokens - lost,
        escrow=(),
        escrow_tokens=0,
        forfeited_tokens=machine.forfeited_tokens + lost,
    )
