"""Standing of a peer: how sure a reader of the ledger can be that its next group is good. Pure.

Passed and failed groups of a peer are the counts of a Beta distribution, Beta(1 + passed, 1 + failed); its standing is
a lower bound of the share of good groups, so a newcomer has none and earns it by verified work. Counts decay with time:
a key that was good long ago is worth little to somebody who buys or steals it.

Everybody who reads the same receipts computes the same standing. That takes three things, and all are here: one rule
for each receipt (`receipt_counts`), the time of a count by its signature and not by its arrival (`Standing.after`), and
one table that forgets peers in one order (`StandingTable`). Validators stand by the checks of their verdicts, by the
same counts (`check_counts`).
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from p2prl.protocol.ledger_messages import CheckOutcome, Receipt, ReceiptState, VerdictCheck
from p2prl.protocol.rejection_reasons import FAULTS

HALF_LIFE_S = 7 * 24 * 3600.0
"""Time in which a peer's counts lose half their weight."""

KNOWN_FROM = 0.74
"""Standing from which a peer is not a newcomer: eight passed groups, as an honest volunteer delivers in minutes."""

_DEVIATIONS = 1.645
"""Standard deviations below the mean: about 95 % of the distribution lies above."""

_PASSED = frozenset({ReceiptState.VERIFIED, ReceiptState.CREDITED_BY_SAMPLING})


class Rank(Enum):
    """Classes of peers, by what came of their work; in the order in which a full table forgets them."""

    DISTRUSTED = 0
    """More of its groups failed than passed."""
    NEWCOMER = 1
    KNOWN = 2


@dataclass(frozen=True, slots=True)
class Standing:
    """Decayed counts of a peer's groups, as of one time."""

    passed: float = 0.0
    failed: float = 0.0
    at: float = 0.0
    """Unix time of the counts."""

    def after(self, at: float, *, passed: float = 0.0, failed: float = 0.0) -> Standing:
        """The counts with these added, which are of the time `at`, as of the later of the two times.

        Counts that are older than the newest weigh less from the start, so the order in which receipts arrive does not
        matter; a clock that went back decays nothing.
        """
        newest = max(at, self.at)
        mine, theirs = 0.5 ** ((newest - self.at) / HALF_LIFE_S), 0.5 ** ((newest - at) / HALF_LIFE_S)
        return Standing(self.passed * mine + passed * theirs, self.failed * mine + failed * theirs, newest)

    @property
    def lower_bound(self) -> float:
        """Standing, 0..1: a lower bound of the share of the peer's groups that are good."""
        good, bad = 1.0 + self.passed, 1.0 + self.failed
        total = good + bad
        deviation = math.sqrt(good * bad / (total * total * (total + 1.0)))
        return max(0.0, good / total - _DEVIATIONS * deviation)

    @property
    def is_known(self) -> bool:
        """Whether the peer is no newcomer."""
        return self.lower_bound >= KNOWN_FROM

    @property
    def rank(self) -> Rank:
        """The class of the peer."""
        if self.failed > self.passed:
            return Rank.DISTRUSTED
        return Rank.KNOWN if self.is_known else Rank.NEWCOMER


def receipt_counts(receipt: Receipt) -> tuple[int, int]:
    """(passed, failed) of a receipt: at most one of them is 1.

    Credited work passes. Only work that was itself bad fails: no honest program on a sound machine sends it. What is
    late, came twice, was sampled by another make of machine, or pays for something that was counted before says nothing
    about the next group.
    """
    is_fault = receipt.state == ReceiptState.REJECTED and receipt.reason in FAULTS
    return int(receipt.state in _PASSED), int(is_fault)


def check_counts(check: VerdictCheck) -> tuple[int, int]:
    """(passed, failed) of a learner's check of a verdict. A contradiction counts once it is decided, not before: else a
    learner could silence the validators that contradict it."""
    return int(check.outcome == CheckOutcome.AGREED), int(check.outcome == CheckOutcome.FAILED)


_Key = TypeVar("_Key", bound=Hashable)


class StandingTable(Generic[_Key]):
    """Standing by key, in bounded memory. A full table forgets those that were known once first, then the distrusted,
    since any number of keys can fail, then newcomers, and of each rank the one heard of longest ago."""

    def __init__(self, capacity: int, key_of: Callable[[bytes], _Key]) -> None:
        """`key_of` gives the key of the table for a public key: the peer itself, or who answers for it."""
        self._capacity = capacity
        self._key_of = key_of
        self._by_rank: dict[Rank, OrderedDict[_Key, Standing]] = {rank: OrderedDict() for rank in Rank}

    def __len__(self) -> int:
        return sum(map(len, self._by_rank.values()))

    def note_receipts(self, receipts: Iterable[Receipt], at: float) -> None:
        """Count receipts that the learner signed at Unix time `at`."""
        for receipt in receipts:
            self.count(receipt.peer, at, *receipt_counts(receipt))

    def note_checks(self, checks: Iterable[VerdictCheck], at: float) -> None:
        """Count checks of validators' verdicts that the learner signed at Unix time `at`."""
        for check in checks:
            self.count(check.validator, at, *check_counts(check))

    def count(self, public_key: bytes, at: float, passed: int, failed: int) -> None:
        """Add counts of the time `at`; none at all leave no trace."""
        if not passed and not failed:
            return
        key = self._key_of(public_key)
        before = next((rows.pop(key) for rows in self._by_rank.values() if key in rows), Standing(at=at))
        standing = before.after(at, passed=passed, failed=failed)
        self._by_rank[standing.rank][key] = standing
        if len(self) > self._capacity:
            self._forget_one(at)

    def _forget_one(self, now: float) -> None:
        once_known = self._by_rank[Rank.KNOWN]
        if once_known and not next(iter(once_known.values())).after(now).is_known:
            once_known.popitem(last=False)  # else a table of peers that left long ago would take in nobody
        else:
            next(rows for rows in self._by_rank.values() if rows).popitem(last=False)

    def of(self, key: _Key) -> Standing:
        """The standing of a key as of its newest count; empty for one that is not in the table."""
        return next((rows[key] for rows in self._by_rank.values() if key in rows), Standing())

    def standings(self) -> Iterator[Standing]:
        """All standings, each as of its newest count."""
        return itertools.chain.from_iterable(rows.values() for rows in self._by_rank.values())

    def is_known(self, key: _Key, now: float) -> bool:
        """Whether a key is no newcomer, now."""
        return self.of(key).after(now).is_known
