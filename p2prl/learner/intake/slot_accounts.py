"""Account of a peer's work slots: which have not arrived, what they are charged, and which are lost. Pure.

A slot fixes its group, so a peer that may leave slots out chooses what is trained on. So every slot number is used
once in a run, in order. An honest peer breaks this rarely: a group is lost with its disk, or a slot that was in flight
when the machine stopped is sampled again. So a share of lost slots is free: it is saved up by delivering.

Groups may arrive in any order. A run of missing slots below an arrived one is a *gap*. It is charged to the savings
when it opens and refunded when it is filled, so there is nothing to gain by leaving before a price falls due. A group
that would open a gap beyond the savings is turned away, to be offered again: an honest peer offers its oldest groups
first, which fills its gaps, and loses nothing. While slots are missing their peer has less standing (`peer_standings`).

After an outage groups come late and in any order. They use up savings at most: no late group voids another.

What no honest peer does costs more: each slot that is forged, or sampled under a policy of an earlier beacon than the
slots below it, voids about `VOIDED_PER_SLOT` of the peer's next groups once its savings are used up. Which groups are
voided depends on a secret of the learner. A peer that knew it would place its losses so that the voids hit the very
groups it does not want to be trained on.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from p2prl.learner.intake.slot_gaps import COUNTED_PER_GAP, LATER_SLOTS, Gap, HasWork, charge, searched, without
from p2prl.protocol import limits, work_slots
from p2prl.protocol.digests import digest
from p2prl.protocol.rejection_reasons import FAULTS
from p2prl.protocol.wire_codec import Wire

MAX_OPEN_GAPS = 64
"""Gaps of one peer that may be open, however much it has saved up: 64 are 3 KiB of the learner's disk."""

MISSING_S = float(limits.MAX_ENVELOPE_AGE_S)
"""A slot counts as lost only this long after a higher one arrived, or after its gap was last filled from below: until
then its group may still come. It is charged all the while, so nothing is gained by letting it wait."""

BLOCKED_S = 3_600.0
"""A peer of which no group could be stored for this long may open a gap without savings: the slots that are missing may
be gone with a disk, and it could not deliver anything else for `MISSING_S`."""

SLOTS_PER_FREE_LOSS = 64
"""Delivered slots that pay for one lost slot. A peer that uses it to choose drops 1.6 % of its groups, which moves the
trained reward less than the seed of a run does; lost groups of honest peers are rarer."""

FREE_AT_START = 32
"""Lost slots free to a new peer: as many as an engine has in flight when its machine is switched off for the first
time. More would be no gift to a cheat, who can take a fresh key instead."""

MOST_FREE = 64
"""Lost slots that can be saved up, and so slots that can be missing at once: twice those an engine has in flight."""

VOIDED_PER_SLOT = 32
"""Groups voided for a lost slot that is not free: dropping any share of one's groups costs a larger share of the rest
from 3 % on, and everything from 5 % on."""

MAX_DEBT = 4_096
"""Groups that a peer can owe. The worst case of an honest peer thus ends after days, not never."""

MAX_FAULT_DEBT = 256
"""Debt from which rejected groups add none. A machine that computes wrong numbers may be repaired; and at this debt one
valid group of 256 is not voided, so that filling slots with forgeries gains nothing."""


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
    heard: float = 0.0
    """Unix time when a group was last stored."""
    start: int = 0
    """The lowest slot that is awaited: slots below it begin the account anew, and leave a gap like others."""
    start_version: int = -1
    """Version of the lowest slot that arrived."""

    @property
    def charged(self) -> int:
        """Lost slots that the open gaps count as, as long as they are not filled."""
        return sum(charge(gap) for gap in self.gaps)


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
    return _starting(SlotAccount(slot, version), slot, version, _below_start(slot, version, now))


def _below_start(slot: int, version: int, now: float) -> tuple[Gap, ...]:
    """The slots that may be in flight below the lowest one that arrived, without a charge."""
    start = max(0, slot - LATER_SLOTS)
    return (Gap(start, slot - 1, -1, version, now, counted=COUNTED_PER_GAP, searched=True),) if slot else ()


def _begun_lower(account: SlotAccount, slot: int, version: int, now: float) -> SlotAccount:
    """The account with a start from which `slot` is awaited.

    The first group to arrive need not be the lowest: a newcomer that worked while the learner was away has thousands,
    and sends its newest at once. What is missing above the new start is charged as any gap, also what the old one had
    free, so nothing is gained by beginning twice.
    """
    if not account.outside <= slot < account.start:
        return account
    between = Gap(slot, account.start - 1, -1, account.start_version, now)
    below = _below_start(slot, version, now)
    above = (
        replace(gap, counted=0, searched=False) if gap.last < account.start + LATER_SLOTS else gap
        for gap in account.gaps
    )
    return _starting(account, slot, version, (*below, between, *above))


def _starting(account: SlotAccount, slot: int, version: int, gaps: tuple[Gap, ...]) -> SlotAccount:
    start = max(0, slot - LATER_SLOTS)
    return replace(account, gaps=gaps, start=start, start_version=version if start else -1)


def free_losses(account: SlotAccount, *, is_delegate: bool) -> int:
    """Slots that may be missing at once.

    A delegate, whose owner answers for it, has what it saved itself: what is free at the start is free to an owner, not
    to each of the keys that it may make.
    """
    return max(0, account.savings // SLOTS_PER_FREE_LOSS - is_delegate * FREE_AT_START)


def has_room(account: SlotAccount, slot: int, *, now: float, has_work: HasWork, is_delegate: bool = False) -> bool:
    """Whether a group of this slot may be stored: it opens no gap that its peer has not saved for."""
    gaps = _gaps_after(_begun_lower(account, slot, account.version, now), slot, account.version, now)
    if len(gaps) > max(len(account.gaps), MAX_OPEN_GAPS):
        return False
    most = max(free_losses(account, is_delegate=is_delegate), account.charged)
    if sum(map(charge, gaps)) <= most or now - account.heard >= BLOCKED_S:
        return True
    return sum(charge(part) for gap in gaps for part in searched(gap, has_work)) <= most


def arrived(account: SlotAccount, slot: int, version: int, *, stale: bool, now: float) -> Arrival:
    """Take note of a group that arrived. `stale` says that its version had left the staleness window before."""
    if slot < account.outside:
        return Arrival(account, awaited=True)
    account = _begun_lower(account, slot, version, now)
    after = replace(account, gaps=_gaps_after(account, slot, version, now), heard=now)
    if slot >= account.next_slot:
        falls = _period(version) < _period(account.version)
        after = replace(after, next_slot=slot + 1, version=max(version, account.version))
        return Arrival(_delivered(after, lost=falls), awaited=True)
    gap = _gap_of(account, slot)
    if gap is None:
        return Arrival(account, awaited=False)
    # The versions of a beacon draw alike, so their order says nothing. On an honest machine all groups of a version are
    # complete before the next is loaded. So a slot of a later beacon than the slot above was sampled again, and a stale
    # group behind a newer one was held back, or kept back by an outage.
    falls = _period(version) < _period(gap.below)
    is_late = _period(version) > _period(gap.above) or (stale and version < gap.above)
    return Arrival(_delivered(after if not is_late else _spend(after), lost=falls), awaited=True)


def swept(account: SlotAccount, now: float, has_work: HasWork, *, is_delegate: bool = False) -> SlotAccount:
    """Count the slots that are missing for too long, but none without valid work.

    Slots without work are looked for when a gap is far behind, or when half of what may be missing is.
    """
    is_tight = 2 * account.charged > free_losses(account, is_delegate=is_delegate)
    kept: list[Gap] = []
    lost = 0
    for gap in account.gaps:
        is_behind = account.next_slot - 1 - gap.last >= LATER_SLOTS
        for part in searched(gap, has_work) if (is_behind or is_tight) and not gap.searched else (gap,):
            if is_behind and now - part.since >= MISSING_S:
                lost += charge(part)
            else:
                kept.append(part)
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


def _period(version: int) -> int:
    """Number of a version's beacon; −1 for the version −1, of slots below the first."""
    return version // work_slots.VERSIONS_PER_BEACON


def _gap_of(account: SlotAccount, slot: int) -> Gap | None:
    return next((gap for gap in account.gaps if gap.first <= slot <= gap.last), None)


def _gaps_after(account: SlotAccount, slot: int, version: int, now: float) -> tuple[Gap, ...]:
    """The gaps once a group of this slot has arrived."""
    if slot >= account.next_slot:
        new = Gap(account.next_slot, slot - 1, account.version, version, now)
        return (*account.gaps, new) if new.slots else account.gaps
    gap = _gap_of(account, slot)
    if gap is None:
        return account.gaps
    # A slot that was sampled again says nothing about the versions of those around it.
    is_between = _period(gap.below) <= _period(version) <= _period(gap.above)
    parts = without(gap, slot, (version, version) if is_between else (gap.below, gap.above), now)
    place = account.gaps.index(gap)
    return (*account.gaps[:place], *parts, *account.gaps[place + 1 :])


def _spend(account: SlotAccount) -> SlotAccount:
    """Use up what is saved for a lost slot, as far as there is something: nothing is voided for a late group."""
    return replace(account, savings=max(0, account.savings - SLOTS_PER_FREE_LOSS), lost=account.lost + 1)


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
