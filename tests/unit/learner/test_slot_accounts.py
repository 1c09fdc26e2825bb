"""Slot accounts: an honest peer loses nothing in whatever order its groups come; a slot left out is charged at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.learner.intake import slot_accounts
from p2prl.learner.intake.slot_accounts import (
    BLOCKED_S,
    FREE_AT_START,
    MAX_DEBT,
    MAX_FAULT_DEBT,
    MAX_OPEN_GAPS,
    MISSING_S,
    MOST_FREE,
    SLOTS_PER_FREE_LOSS,
    VOIDED_PER_SLOT,
    SlotAccount,
)
from p2prl.learner.intake.slot_gaps import COUNTED_PER_GAP, LATER_SLOTS
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.wire_codec import decode, encode
from p2prl.protocol.work_slots import VERSIONS_PER_BEACON

NOW = 1_800_000_000.0
START = FREE_AT_START * SLOTS_PER_FREE_LOSS


def has_work(version: int, slot: int) -> bool:
    return True


class Learner:
    """One peer's account, as intake and settlement keep it."""

    def __init__(self, *, has_work: Callable[[int, int], bool] = has_work, is_delegate: bool = False) -> None:
        self.is_delegate = is_delegate
        self.account: SlotAccount | None = None
        self.now = NOW
        self.has_work = has_work
        self.turned_away: list[int] = []
        self.unawaited: list[int] = []

    def deliver(self, slot: int, version: int = 0, *, stale: bool = False) -> None:
        account = self.account or slot_accounts.account_before(slot, version, self.now)
        if not self.has_room(slot, account):
            self.turned_away.append(slot)
            return
        arrival = slot_accounts.arrived(account, slot, version, stale=stale, now=self.now)
        if not arrival.awaited:
            self.unawaited.append(slot)
        account = slot_accounts.swept(arrival.account, self.now, self.has_work, is_delegate=self.is_delegate)
        self.account = decode(encode(account), SlotAccount, limit_bytes=1 << 20)

    def has_room(self, slot: int, account: SlotAccount | None = None) -> bool:
        return slot_accounts.has_room(
            account or self.state, slot, now=self.now, has_work=self.has_work, is_delegate=self.is_delegate
        )

    def deliver_all(self, slots: Iterable[int], version: int = 0) -> None:
        for slot in slots:
            self.deliver(slot, version)

    def settle(self, slot: int) -> bool:
        """Whether a verified group is voided."""
        assert self.account is not None
        draw = slot_accounts.void_draw(b"secret", b"peer", slot)
        self.account, is_voided = slot_accounts.verified(self.account, draw)
        return is_voided

    @property
    def state(self) -> SlotAccount:
        assert self.account is not None
        return self.account


def established(slots: int = 10_000) -> Learner:
    """A peer that has delivered this many slots, and saved up what it may."""
    learner = Learner()
    savings = min(START + slots, MOST_FREE * SLOTS_PER_FREE_LOSS)
    learner.account = SlotAccount(slots, 0, savings=savings, heard=NOW)
    return learner


def test_an_established_peer_is_one_that_delivered_in_order() -> None:
    learner = Learner()
    learner.deliver_all(range(2_500))
    assert learner.account == established(2_500).account
    assert learner.state.savings == MOST_FREE * SLOTS_PER_FREE_LOSS


def missing(account: SlotAccount) -> set[int]:
    return {slot for gap in account.gaps for slot in range(gap.first, gap.last + 1)}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 80), st.integers(0, 100))
def test_any_order_of_an_honest_peers_groups_costs_nothing(seed: int, reach: int, extra: int) -> None:
    """Groups overtake each other by up to `reach`, and those that are turned away are offered again, oldest first."""
    rng = random.Random(seed)
    slots = range(500, 500 + 3 * reach + extra)
    offered = sorted(slots, key=lambda slot: slot + reach * rng.random())
    learner = Learner()
    came: set[int] = set()
    rounds = 0
    while offered:
        rounds += 1
        for slot in offered:
            learner.now += 10.0
            learner.deliver(slot, version=slot // 16)
            came.add(slot)
            state = learner.state
            assert missing(state) >= {s for s in range(500, state.next_slot) if s not in came}
        offered, learner.turned_away = sorted(learner.turned_away), []
        came -= set(offered)
    state = learner.state
    assert rounds <= 2, "all that was turned away is taken in order"
    assert not learner.unawaited
    assert missing(state) == set(range(500 - LATER_SLOTS, 500)) & missing(state), "only slots below its start"
    assert (state.charged, state.lost, state.debt, state.next_slot) == (0, 0, 0, slots.stop)


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(100, 400), max_size=60), st.booleans())
def test_what_is_missing_never_exceeds_what_is_saved(left_out: set[int], is_delegate: bool) -> None:
    """By another method: runs of missing slots in a list of booleans."""
    learner = Learner(is_delegate=is_delegate)
    for slot in range(500):
        if slot in left_out:
            continue
        learner.deliver(slot)
        gone = {other for other in left_out.union(learner.turned_away) if other < learner.state.next_slot}
        text = "".join("x" if other in gone else " " for other in range(learner.state.next_slot))
        charged = sum(min(COUNTED_PER_GAP, len(run)) for run in text.split())
        delivered = learner.state.next_slot - len(gone)
        most = delivered // SLOTS_PER_FREE_LOSS + (0 if is_delegate else FREE_AT_START)
        assert learner.state.charged == charged <= most
    for slot in sorted({*left_out, *learner.turned_away}):
        learner.deliver(slot)
    assert (learner.state.charged, learner.state.gaps) == (0, ()), "refunded"
    assert (learner.state.lost, learner.state.debt) == (0, 0)
    assert learner.state.savings == START + 500


def test_a_group_that_would_open_a_gap_too_many_is_turned_away_until_the_others_are_filled() -> None:
    learner = Learner()
    learner.deliver_all(range(0, 1_000, 8))
    most = FREE_AT_START // COUNTED_PER_GAP
    assert learner.state.charged == FREE_AT_START
    assert len(learner.state.gaps) == most
    assert learner.turned_away[0] == 8 * (most + 1)
    learner.deliver(8 * most + 1)
    assert learner.state.next_slot == 8 * most + 2
    learner.deliver(3)
    assert learner.turned_away[-1] == 3, "it would split a gap, and the parts count for more"
    learner.deliver_all(range(1, 8))
    assert learner.state.charged == FREE_AT_START - COUNTED_PER_GAP
    learner.deliver(8 * most + 9)
    assert learner.state.charged == FREE_AT_START
    assert len(encode(learner.state)) < 4_096


def test_what_is_free_at_the_start_is_free_to_an_owner_and_not_to_each_of_its_keys() -> None:
    learner = Learner(is_delegate=True)
    learner.deliver_all(range(SLOTS_PER_FREE_LOSS - 1))
    assert not learner.has_room(SLOTS_PER_FREE_LOSS)
    learner.deliver(SLOTS_PER_FREE_LOSS - 1)
    assert learner.has_room(SLOTS_PER_FREE_LOSS + 1), "it has saved for one slot"
    assert not learner.has_room(SLOTS_PER_FREE_LOSS + 2)


def test_a_peer_that_lost_what_it_owes_may_go_on_after_an_hour() -> None:
    learner = established()
    learner.account = SlotAccount(10_000, 0, savings=0, heard=NOW)
    learner.deliver(11_000)
    assert learner.turned_away == [11_000]
    learner.now += BLOCKED_S - 1
    assert not learner.has_room(11_000)
    learner.now += 1
    learner.deliver_all((11_000, 12_000))
    assert learner.turned_away == [11_000, 12_000], "once an hour"
    assert learner.state.charged == COUNTED_PER_GAP


def test_the_number_of_gaps_is_bounded_whatever_is_saved() -> None:
    learner = established()
    learner.account = SlotAccount(10_000, 0, savings=10**9, heard=NOW)
    learner.deliver_all(range(10_001, 11_000, 2))
    assert len(learner.state.gaps) == MAX_OPEN_GAPS
    assert len(encode(learner.state)) < 4_096


def test_a_slot_is_awaited_as_long_as_its_group_may_arrive() -> None:
    learner = established()
    learner.deliver_all(range(10_001, 10_000 + LATER_SLOTS - 1))
    learner.now += MISSING_S
    learner.deliver(10_000 + LATER_SLOTS - 1)
    assert missing(learner.state) == {10_000}, "its peer may just have stopped"
    learner.deliver(10_000 + LATER_SLOTS)
    assert (learner.state.lost, learner.state.charged) == (1, 0)
    learner = established()
    learner.deliver_all(range(10_001, 10_200))
    learner.now += MISSING_S - 1
    learner.deliver(10_200)
    assert missing(learner.state) == {10_000}
    learner.deliver(10_000)
    assert (learner.state.lost, learner.state.gaps, learner.unawaited) == (0, (), [])


def test_a_gap_that_is_filled_from_below_is_awaited_however_long_it_takes() -> None:
    learner = established()
    learner.deliver_all(range(11_000, 11_100))
    for slot in range(10_000, 11_000):
        learner.now += MISSING_S - 1
        learner.deliver(slot)
    assert (learner.state.lost, learner.state.gaps) == (0, ())


def test_a_slot_is_awaited_once() -> None:
    learner = established()
    learner.deliver(9_999)
    learner.deliver_all(range(10_001, 10_100))
    learner.now += MISSING_S
    learner.deliver(10_100)
    learner.deliver(10_000)
    assert learner.unawaited == [9_999, 10_000]
    assert learner.state.lost == 1


PERIOD = VERSIONS_PER_BEACON


@pytest.mark.parametrize(
    ("version", "spent", "debt"),
    [
        (2 * PERIOD, 0, 0),
        (2 * PERIOD + 9, 0, 0),
        (4 * PERIOD - 1, 0, 0),
        (4 * PERIOD, 1, 0),
        (2 * PERIOD - 1, 1, VOIDED_PER_SLOT),
    ],
)
def test_versions_of_a_beacon_are_equals_and_others_have_an_order(version: int, spent: int, debt: int) -> None:
    for savings in (20 * SLOTS_PER_FREE_LOSS, SLOTS_PER_FREE_LOSS - 2):
        learner = Learner()
        learner.account = SlotAccount(0, -1, savings=savings)
        learner.deliver_all([0], version=2 * PERIOD + 40)
        learner.now += BLOCKED_S
        learner.deliver(2, version=3 * PERIOD + 5)
        learner.account = slot_accounts.SlotAccount(3, 3 * PERIOD + 5, learner.state.gaps, savings=savings)
        learner.deliver(1, version)
        assert learner.state.lost == spent
        assert learner.state.debt == (debt if savings < SLOTS_PER_FREE_LOSS else 0), "late groups void nothing"


def test_versions_that_fall_to_an_earlier_beacon_count() -> None:
    learner = Learner()
    for slot, version in enumerate((0, 5 * PERIOD, 5 * PERIOD + 9, 5 * PERIOD, 5 * PERIOD - 1, 6 * PERIOD, 0)):
        learner.deliver(slot, version)
    assert learner.state.lost == 2


def test_versions_between_two_gaps_are_bounds_of_their_own() -> None:
    learner = Learner()
    for slot, period in ((0, 1), (10, 9), (5, 4), (1, 5), (2, 4), (7, 3), (8, 9)):
        learner.deliver(slot, period * PERIOD)
    assert learner.state.lost == 2, "slot 1 under a beacon after slot 5's, slot 7 under one before it"


def test_stale_groups_that_were_held_back_use_up_savings_and_void_nothing() -> None:
    learner = established()
    for slot in range(10_000, 10_800, 2):
        learner.deliver(slot + 1, version=2)
        learner.deliver(slot, version=1, stale=True)
    assert learner.state.savings < SLOTS_PER_FREE_LOSS, "each is a choice of its own"
    assert learner.turned_away, "and when nothing is saved, there is none"
    assert learner.state.debt == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.0, 0.5), st.integers(1, 400), st.booleans())
def test_an_outage_voids_nothing_whatever_gossip_carries_meanwhile(
    seed: int, trickle: float, groups: int, stale: bool
) -> None:
    """What was not carried comes afterwards, oldest first, while new groups arrive."""
    rng = random.Random(seed)
    learner = Learner()
    learner.deliver_all(range(rng.randrange(1, 2_000)))
    first = learner.state.next_slot
    waiting = [slot for slot in range(first, first + groups) if rng.random() >= trickle]
    for slot in range(first, first + groups):
        learner.now += rng.choice((20.0, 80.0))
        if slot not in waiting:
            learner.deliver(slot, version=slot // 3)
    waiting = sorted({*waiting, *learner.turned_away})
    learner.turned_away.clear()
    slot = first + groups
    while waiting:
        for old in waiting[:16]:
            learner.deliver(old, version=old // 3, stale=stale)
        learner.deliver(slot, version=slot // 3)
        slot += 1
        waiting = sorted({*waiting[16:], *learner.turned_away})
        learner.turned_away.clear()
    assert (learner.unawaited, learner.state.gaps, learner.state.debt) == ([], (), 0)
    assert learner.state.next_slot == slot


def test_a_lost_disk_is_free_for_a_peer_with_savings() -> None:
    learner = established()
    learner.deliver_all(range(5_000_000, 5_000_100))
    learner.now += MISSING_S
    learner.deliver(5_000_100)
    assert (learner.state.lost, learner.state.debt) == (COUNTED_PER_GAP, 0)


def test_slots_without_valid_work_are_no_gaps() -> None:
    learner = Learner(has_work=lambda version, slot: slot % 3 == version)
    learner.deliver_all(range(1, 3_000, 3), version=1)
    assert learner.turned_away == []
    learner.now += MISSING_S
    learner.deliver_all(range(3_001, 3_200, 3), version=1)
    assert learner.state.lost == 0
    assert all(gap.last >= 3_100 for gap in learner.state.gaps)
    mixed = Learner(has_work=lambda version, slot: slot not in (12, 14))
    mixed.deliver_all([*range(10), *range(16, 200)])
    assert missing(mixed.state) == {10, 11, 13, 15}
    mixed.now += MISSING_S
    mixed.deliver(200)
    assert mixed.state.lost == 4


def test_a_lost_slot_voids_half_of_the_following_groups_until_it_is_paid() -> None:
    learner = established(START)
    learner.account = slot_accounts.SlotAccount(START, 0, savings=0, debt=VOIDED_PER_SLOT)
    voided = [learner.settle(slot) for slot in range(200)]
    assert sum(voided) == VOIDED_PER_SLOT
    last = max(slot for slot in range(200) if voided[slot])
    assert 45 <= last <= 90, "the peer cannot know which"
    heavy = Learner()
    heavy.account = slot_accounts.SlotAccount(START, 0, savings=0, debt=20 * VOIDED_PER_SLOT)
    assert all(heavy.settle(slot) for slot in range(10 * VOIDED_PER_SLOT))


def test_draws_are_uniform_and_the_peers_own() -> None:
    draws = [slot_accounts.void_draw(b"secret", b"peer", slot) for slot in range(4_000)]
    assert [sum(k <= 10 * draw < k + 1 for draw in draws) for k in range(10)] == pytest.approx([400] * 10, abs=80)
    assert slot_accounts.void_draw(b"secret", b"peer", 7) == draws[7]
    assert slot_accounts.void_draw(b"other", b"peer", 7) != draws[7] != slot_accounts.void_draw(b"secret", b"p", 7)


def test_debt_is_bounded() -> None:
    learner = established()
    for slot in range(10_000, 10_600):
        learner.deliver(slot, version=(slot % 2) * PERIOD)
    assert learner.state.debt == MAX_DEBT


@pytest.mark.parametrize("reason", list(RejectionReason))
def test_a_slot_filled_with_nonsense_is_lost(reason: RejectionReason) -> None:
    honest = {"unknown_policy", "too_stale", "duplicate_slot", "engine_mismatch", "withheld_slots", "excluded"}
    account = established().state
    for count in range(1, 200):
        account = slot_accounts.rejected(account, reason)
        lost = 0 if reason in honest else count
        assert account.lost == lost
        assert account.debt == min(MAX_FAULT_DEBT, VOIDED_PER_SLOT * max(0, lost - MOST_FREE))
    owing = slot_accounts.SlotAccount(9, 0, savings=0, debt=1_000)
    assert slot_accounts.rejected(owing, reason).debt == 1_000


def test_groups_from_before_the_accounts_cost_nothing() -> None:
    learner = Learner()
    learner.account = slot_accounts.SlotAccount(500, -1, outside=500)
    learner.deliver_all((3, 499, 3), version=7)
    learner.deliver_all((502, 500, 501), version=2)
    assert (learner.unawaited, learner.state.lost, learner.state.next_slot) == ([], 0, 503)
