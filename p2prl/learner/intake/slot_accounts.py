"""Account of a peer's work slots: which have not arrived, which count as withheld, and what they cost. Pure.

A slot fixes its group, so a peer that may leave slots out chooses what is trained on. So every slot number is used
once in a run, in order, under versions that never fall. An honest peer breaks this rarely: a group is lost with its
disk, or a slot that was in flight when the machine stopped is sampled again under a newer version. So a share of lost
slots is free, and each further one voids about `VOIDED_PER_SLOT` of the peer's next groups.

Which groups are voided depends on a secret of the learner. A peer that knew it would place its losses so that the voids
hit the very groups it does not want to be trained on.

Groups may arrive in any order. A run of missing slots below an arrived one is a *gap*. It counts as withheld only when
it is old and far behind; until then the number of gaps is bounded, and a group that would open one too many is turned
away, to be offered again. This bounds what a peer can choose before it pays, and the size of its account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from p2prl.protocol.digests import digest
from p2prl.protocol.rejection_reasons import FAULTS
from p2prl.protocol.wire_codec import Wire

MAX_OPEN_GAPS = 64
"""Gaps of one peer that may be open: twice the slots an engine has in flight. Each allows one selected group before the
price falls due; and 64 of them are 3 KiB of the learner's disk, for a peer that delivered as many groups."""

LATER_SLOTS = 64
"""A slot counts as withheld only when the peer has delivered a slot this much higher: a peer that just stopped has
withheld nothing."""

MISSING_S = 3_600.0
"""A slot counts as withheld only this long after a higher one arrived, or after its gap was last filled from below:
twice the longest delay of the network that a run is made for. A spool is delivered from its oldest group on, so a gap
left by an outage is being filled however long that takes."""

SLOTS_PER_FREE_LOSS = 64
"""Delivered slots that pay for one lost slot. A peer that uses it to choose drops 1.6 % of its groups, which moves the
trained reward less than the seed of a run does; lost groups of honest peers are rarer."""

FREE_AT_START = 32
"""Lost slots free to a new peer: as many as an engine has in flight when its machine is switched off for the first
time. More would be no gift to a cheat, who can take a fresh key instead."""

MOST_FREE = 64
"""Lost slots that can be saved up."""

COUNTED_PER_GAP = 4
"""Lost slots that one gap counts as, at most. A lost disk or an overfull spool leaves one gap, however long; and a peer
that skips whole stretches to choose among them needs stretches so long that they are alike on average."""

VOIDED_PER_SLOT = 32
"""Groups voided for a lost slot that is not free: dropping any share of one's groups costs a larger share of the rest
from 3 % on, and everything from 5 % on."""

MAX_DEBT = 4_096
"""Groups that a peer can owe. The worst case of an honest peer thus ends after days, not never."""

MAX_FAULT_DEBT = 256
"""Debt from which rejected groups add none. A machine that computes wrong numbers may be repaired; and at this debt one
valid group of 256 is not voided, so that filling slots with forgeries gains nothing."""

HasWork = Callable[[int, int], bool]
"""(version, slot) → whether the slot has valid work under this version; slots that have none are skipped."""


class Gap(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Slots that have not arrived, all in a row, below one that has."""

    first: int
    last: int
    below: int
    """Newest version of the slots below; −1 when there is none."""
    above: int
    """Version of the slot above."""
    since: float
    """Unix time when the slot above arrived, or when the gap was last filled from below."""
    counted: int = 0
    """Lost slots that it was counted as already."""
    searched: bool = False
    """Whether the slots without valid work have been taken out."""

    @property
    def slots(self) -> int:
        """Number of missing slots."""
        return self.last - self.first + 1


class SlotAccount(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a learner remembers of one peer's slots."""

    next_slot: int
    """The slot after the highest that arrived."""
    version: int
    """Newest version of a group that arrived."""
    gaps: tuple[Gap, ...] = ()
    """In ascending order."""
    savings: int = FREE_AT_START * SLOTS_PER_FREE_LOSS
    """Delivered slots that have not paid for a lost one yet."""
    debt: int = 0
    """Groups still to be voided."""
    lost: int = 0
    """Lost slots that were counted, free or not."""
    outside: int = 0
    """Slots below this one have no account: the journal's earlier release kept none."""

    @property
    def frontier(self) -> int:
        """Lowest slot that is not accounted for."""
        return self.gaps[0].first if self.gaps else self.next_slot


@dataclass(frozen=True, slots=True)
class Arrival:
    """What an arrived group means for its peer's account."""

    account: SlotAccount
    awaited: bool
    """False when the slot had arrived before, was counted as withheld, or lies below the peer's start."""


def account_before(slot: int, version: int, now: float) -> SlotAccount:
    """The account of a peer whose first group to arrive is of this slot.

    A peer may start anywhere. Lower slots that are in flight are awaited, and cost nothing if they never come.
    """
    start = max(0, slot - LATER_SLOTS)
    gap = Gap(start, slot - 1, -1, version, now, counted=COUNTED_PER_GAP, searched=True)
    return SlotAccount(slot, version, (gap,) if slot else ())


def has_room(account: SlotAccount, slot: int) -> bool:
    """Whether a group of this slot may arrive: it opens no gap too many."""
    if slot > account.next_slot:
        return len(account.gaps) < MAX_OPEN_GAPS
    splits = any(gap.first < slot < gap.last for gap in account.gaps)
    return not splits or len(account.gaps) < MAX_OPEN_GAPS


def arrived(account: SlotAccount, slot: int, version: int, *, stale: bool, now: float) -> Arrival:
    """Take note of a group that arrived. `stale` says that its version had left the staleness window before."""
    if slot < account.outside:
        return Arrival(account, awaited=True)
    if slot >= account.next_slot:
        lost = version < account.version
        gaps = account.gaps
        if slot > account.next_slot:
            gaps = (*gaps, Gap(account.next_slot, slot - 1, account.version, version, now))
        account = replace(account, next_slot=slot + 1, version=max(version, account.version), gaps=gaps)
        return Arrival(_delivered(account, lost=lost), awaited=True)
    place = next((place for place, gap in enumerate(account.gaps) if gap.first <= slot <= gap.last), None)
    if place is None:
        return Arrival(account, awaited=False)
    gap = account.gaps[place]
    # On an honest machine all groups of a version are complete before the next is loaded. So a slot of another version
    # than those around it allow was sampled twice, and a stale group behind a newer one was held back or in an outage.
    sampled_again = not gap.below <= version <= gap.above
    held_back = stale and version < gap.above and gap.counted < COUNTED_PER_GAP
    # A slot that was sampled again says nothing about the versions of those around it.
    bounds = (gap.below, gap.above) if sampled_again else (version, version)
    parts = _without(replace(gap, counted=gap.counted + held_back), slot, bounds, now)
    gaps = (*account.gaps[:place], *parts, *account.gaps[place + 1 :])
    return Arrival(_delivered(replace(account, gaps=gaps), lost=sampled_again or held_back), awaited=True)


def swept(account: SlotAccount, now: float, has_work: HasWork) -> SlotAccount:
    """Count the slots that are missing for too long, but none without valid work."""
    kept: list[Gap] = []
    lost = 0
    for gap in account.gaps:
        if account.next_slot - 1 - gap.last < LATER_SLOTS:
            kept.append(gap)
            continue
        for part in (gap,) if gap.searched else _with_work(gap, has_work):
            if now - part.since < MISSING_S:
                kept.append(part)
            else:
                lost += max(0, min(part.slots, COUNTED_PER_GAP) - part.counted)
    return _lose(replace(account, gaps=tuple(kept)), lost)


def rejected(account: SlotAccount, reason: str) -> SlotAccount:
    """A group of the peer failed its checks: its slot is lost if that was the author's doing."""
    if reason not in FAULTS:
        return account
    after = _lose(account, 1)
    return replace(after, debt=min(after.debt, max(account.debt, MAX_FAULT_DEBT)))


def verified(account: SlotAccount, draw: float) -> tuple[SlotAccount, bool]:
    """A group passed its checks: the account after it, and whether the group is voided. `draw` is uniform in 0..1."""
    withheld = -(-account.debt // VOIDED_PER_SLOT)
    if draw < 0.5**withheld:
        return account, False
    return replace(account, debt=account.debt - 1), True


def void_draw(secret: bytes, peer: bytes, slot: int) -> float:
    """The number that decides whether a slot's group is voided, uniform in 0..1; unknown without the secret."""
    drawn = digest("p2prl/withheld-price/v1", secret, peer, slot.to_bytes(8, "little"))
    return int.from_bytes(drawn[:6], "little") / 2**48


def _delivered(account: SlotAccount, *, lost: bool) -> SlotAccount:
    most = MOST_FREE * SLOTS_PER_FREE_LOSS
    return _lose(replace(account, savings=min(most, account.savings + 1)), int(lost))


def _lose(account: SlotAccount, slots: int) -> SlotAccount:
    free = min(slots, account.savings // SLOTS_PER_FREE_LOSS)
    return replace(
        account,
        savings=account.savings - free * SLOTS_PER_FREE_LOSS,
        debt=min(MAX_DEBT, account.debt + VOIDED_PER_SLOT * (slots - free)),
        lost=account.lost + slots,
    )


def _without(gap: Gap, slot: int, bounds: tuple[int, int], now: float) -> Iterator[Gap]:
    """What is left of a gap when one of its slots has arrived; `bounds` are the versions it sets above and below it."""
    below, above = bounds
    if gap.first < slot:
        yield replace(gap, last=slot - 1, above=above)
    if slot < gap.last:
        since = now if slot == gap.first else gap.since
        yield replace(gap, first=slot + 1, below=below, since=since)


def _with_work(gap: Gap, has_work: HasWork) -> Iterator[Gap]:
    """The parts of a gap whose slots have valid work. A long gap was not made by skipping, and is not searched."""
    if gap.slots > LATER_SLOTS:
        yield replace(gap, searched=True)
        return
    versions = {gap.above, gap.below} - {-1}
    first = None
    for slot in range(gap.first, gap.last + 2):
        missing = slot <= gap.last and all(has_work(version, slot) for version in versions)
        if missing and first is None:
            first = slot
        elif not missing and first is not None:
            yield replace(gap, first=first, last=slot - 1, searched=True)
            first = None
