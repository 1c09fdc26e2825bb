"""Exclusion of confirmed cheats: a key whose forged groups a second replay confirmed is not checked for a while. Pure.

Every group is checked before it is credited, so exclusion spares the learner the checks, nothing else. It is for keys
that mostly forge: an honest machine that errs now and then only loses the groups it got wrong. It ends by itself, so a
machine that was repaired comes back, and it is longer each time. All of it follows from the times of the confirmed
forgeries, which the journal keeps with their evidence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from p2prl.protocol.standing import Standing

CONFIRMED_FORGERIES = 3
"""Confirmed forgeries that exclude a key: one or two can be a machine's bad minute. As many keys of one owner that have
forged exclude all of the owner's."""

HONEST_PER_FORGERY = 16.0
"""Good groups for each bad one from which forgeries are not held against a key: a peer that does that much honest work
costs less than it gives, and is more likely a machine with faulty memory."""

FORGERY_MEMORY_S = 24 * 3600.0
"""How long a confirmed forgery counts towards an exclusion."""

FIRST_EXCLUSION_S = 3600.0
"""Length of a key's first exclusion; each further one takes twice as long as the one before."""

LONGEST_EXCLUSION_S = 7 * 24 * 3600.0
"""Longest exclusion. Nothing a volunteer keeps is older than a week."""

EXCLUSION_MEMORY_S = 4 * LONGEST_EXCLUSION_S
"""How long an exclusion lengthens the next."""

RECEIPTS_WHILE_EXCLUDED = 4
"""Groups that are answered with a receipt during an exclusion, so that the volunteer learns of it. Any more would be a
ledger entry each, for nothing."""

MAX_EXCLUDED = 16_384
"""Identities remembered; those whose last forgery is oldest are forgotten first, since any number of keys can forge."""


def counts_against(standing: Standing) -> bool:
    """Whether a confirmed forgery is held against a key of this standing, which has it counted already."""
    return standing.failed * HONEST_PER_FORGERY > standing.passed


@dataclass(slots=True)
class _Record:
    """What is known of an identity."""

    forgeries: list[float]
    """Times of those that count towards the next exclusion."""
    exclusions: list[tuple[float, float]]
    """Begin and end of each."""
    told: int = 0
    """Groups answered with a receipt since the newest exclusion began."""


class Exclusions:
    """Identities with confirmed forgeries."""

    def __init__(self, forgeries: Iterable[tuple[bytes, float]] = (), *, most: int = MAX_EXCLUDED) -> None:
        """`forgeries` are the (identity, time) of earlier ones in order of time."""
        self._most = most
        self._records: OrderedDict[bytes, _Record] = OrderedDict()
        for identity, at in forgeries:
            self.confirm(identity, at)

    def __len__(self) -> int:
        """Identities remembered."""
        return len(self._records)

    def confirm(self, identity: bytes, now: float) -> None:
        """A forgery of this identity was confirmed. Those that were on their way when it was excluded add nothing."""
        if self.is_excluded(identity, now):
            return
        record = self._records.setdefault(identity, _Record([], []))
        self._records.move_to_end(identity)
        record.forgeries = [at for at in record.forgeries if now - at < FORGERY_MEMORY_S] + [now]
        if len(record.forgeries) >= CONFIRMED_FORGERIES:
            record.exclusions = [each for each in record.exclusions if now - each[1] < EXCLUSION_MEMORY_S]
            length = min(LONGEST_EXCLUSION_S, FIRST_EXCLUSION_S * 2.0 ** len(record.exclusions))
            record.exclusions.append((now, now + length))
            record.forgeries, record.told = [], 0
        while len(self._records) > self._most:
            self._records.popitem(last=False)

    def has_forged(self, identity: bytes, now: float) -> bool:
        """Whether a forgery of this identity was confirmed within the time for which they count."""
        record = self._records.get(identity)
        if record is None:
            return False
        begun = (begin for begin, _ in record.exclusions[-1:])  # by forgeries that are no longer listed
        return any(now - at < FORGERY_MEMORY_S for at in (*record.forgeries, *begun))

    def is_excluded(self, identity: bytes, now: float) -> bool:
        """Whether the identity's groups are turned away."""
        return self.excluded_until(identity, now) > now

    def tells(self, identity: bytes) -> bool:
        """Whether to answer one more group of an excluded identity with a receipt; counts it."""
        record = self._records.get(identity)
        if record is None or record.told >= RECEIPTS_WHILE_EXCLUDED:
            return False
        record.told += 1
        return True

    def excluded_until(self, identity: bytes, now: float) -> float:
        """Unix time at which its exclusion ends; `now` if it is not excluded."""
        record = self._records.get(identity)
        if record is None or not record.exclusions:
            return now
        begin, end = record.exclusions[-1]
        if begin > now:  # by a clock that has been put right since: it lasts no longer than it was to
            record.exclusions[-1] = begin, end = now, now + end - begin
        return max(now, end)
