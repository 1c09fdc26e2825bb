"""Slot accounts: an honest peer pays nothing in whatever order its groups arrive; a slot left out costs its price."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.learner.intake import slot_accounts
from p2prl.learner.intake.slot_accounts import (
    COUNTED_PER_GAP,
    FREE_AT_START,
    LATER_SLOTS,
    MAX_DEBT,
    MAX_FAULT_DEBT,
    MAX_OPEN_GAPS,
    MISSING_S,
    MOST_FREE,
    SLOTS_PER_FREE_LOSS,
    VOIDED_PER_SLOT,
    SlotAccount,
)
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.wire_codec import decode, encode

NOW = 1_800_000_000.0
START = FREE_AT_START * SLOTS_PER_FREE_LOSS


def has_work(version: int, slot: int) -> bool:
    return True


class Learner:
    """One peer's account, as intake and settlement keep it."""

    def __init__(self, *, has_work: Callable[[int, int], bool] = has_work) -> None:
        self.account: SlotAccount | None = None
        self.now = NOW
        self.has_work = has_work
        self.turned_away: list[int] = []
        self.unawaited: list[int] = []

    def deliver(self, slot: int, version: int = 0, *, stale: bool = False) -> None:
        account = self.account or slot_accounts.account_before(slot, version, self.now)
        if not slot_accounts.has_room(account, slot):
            self.turned_away.append(slot)
            return
        arrival = slot_accounts.arrived(account, slot, version, stale=stale, now=self.now)
        if not arrival.awaited:
            self.unawaited.append(slot)
        account = slot_accounts.swept(arrival.account, self.now, self.has_work)
        self.account = decode(encode(account), SlotAccount, limit_bytes=1 << 20)

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
    learner.account = SlotAccount(slots, 0, savings=min(START + slots, MOST_FREE * SLOTS_PER_FREE_LOSS))
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
    """Groups overtake each other by up to `reach`, for up to the time that a slot may be missing."""
    rng = random.Random(seed)
    slots = range(500, 500 + 3 * reach + extra)
    offered = sorted(slots, key=lambda slot: slot + reach * rng.random())
    learner = Learner()
    came: set[int] = set()
    while offered:
        for slot in offered:
            learner.now += MISSING_S / (4 * reach)
            learner.deliver(slot, version=slot // 16)
            came.add(slot)
            state = learner.state
            assert missing(state) >= {s for s in range(500, state.next_slot) if s not in came}
        offered, learner.turned_away = learner.turned_away, []
        came -= set(offered)
    state = learner.state
    assert not learner.unawaited
    assert missing(state) == set(range(500 - LATER_SLOTS, 500)) & missing(state), "only slots below its start"
    assert (state.lost, state.debt, state.next_slot) == (0, 0, slots.stop)


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(100, 400), max_size=60), st.integers(0, 2**32))
def test_each_slot_left_out_is_counted(left_out: set[int], seed: int) -> None:
    """By another method: runs of missing slots in a list of booleans."""
    delivered = [slot for slot in range(500) if slot not in left_out]
    learner = Learner()
    learner.deliver_all(delivered)
    learner.now += MISSING_S
    learner.deliver(500)
    runs = "".join("x" if slot in left_out else " " for slot in range(500)).split()
    lost = sum(min(COUNTED_PER_GAP, len(run)) for run in runs)
    state = learner.state
    assert (state.lost, state.gaps) == (lost, ())
    assert state.debt == VOIDED_PER_SLOT * max(0, lost - (START + len(delivered) + 1) // SLOTS_PER_FREE_LOSS)


def test_a_slot_is_awaited_for_an_hour_and_sixty_four_slots() -> None:
    learner = established()
    learner.deliver_all(range(10_001, 10_000 + LATER_SLOTS - 1))
    learner.now += MISSING_S
    learner.deliver(10_000 + LATER_SLOTS - 1)
    assert missing(learner.state) == {10_000}, "its peer may just have stopped"
    learner.deliver(10_000 + LATER_SLOTS)
    assert learner.state.lost == 1
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


def test_a_newcomer_may_start_anywhere_but_has_one_start() -> None:
    learner = Learner()
    learner.deliver(1_000_002)
    learner.deliver(1_000_000)
    learner.deliver(1_000_002 - LATER_SLOTS)
    learner.deliver(1_000_002 - LATER_SLOTS - 1)
    assert learner.unawaited == [1_000_002 - LATER_SLOTS - 1]
    learner.deliver_all(range(1_000_003, 1_000_100))
    learner.now += MISSING_S
    learner.deliver(1_000_100)
    assert (learner.state.lost, learner.state.gaps) == (0, ()), "slots below the first that arrived are free"


@pytest.mark.parametrize(("version", "lost"), [(3, 0), (4, 0), (5, 1), (2, 1)])
def test_a_slot_sampled_again_under_another_version_counts(version: int, lost: int) -> None:
    learner = Learner()
    learner.deliver_all(range(10), version=3)
    learner.deliver_all(range(11, 20), version=4)
    learner.deliver(10, version)
    assert (learner.state.lost, learner.state.gaps) == (lost, ())


def test_versions_between_two_gaps_are_bounds_of_their_own() -> None:
    learner = Learner()
    learner.deliver(0, 1)
    learner.deliver(10, 9)
    learner.deliver(5, 4)
    for slot, version in ((1, 5), (2, 4), (7, 3), (8, 9)):
        learner.deliver(slot, version)
    assert learner.state.lost == 2, "slot 1 under a version above slot 5's, slot 7 under one below it"


def test_versions_that_fall_count() -> None:
    learner = Learner()
    for slot, version in enumerate((0, 5, 5, 4, 5, 6, 0)):
        learner.deliver(slot, version)
    assert learner.state.lost == 2


def test_a_stale_group_held_back_behind_a_newer_version_counts() -> None:
    learner = established()
    for slot in range(10_000, 10_400, 2):
        learner.deliver(slot + 1, version=2)
        learner.deliver(slot, version=1, stale=True)
    assert learner.state.lost >= 199, "each is a choice of its own"
    assert learner.state.debt > 0


def test_groups_of_an_outage_count_as_few() -> None:
    learner = established()
    learner.deliver_all(range(13_000, 13_010), version=9)
    for slot in range(10_000, 13_000):
        learner.deliver(slot, version=0, stale=True)
    assert (learner.state.lost, learner.state.debt) == (COUNTED_PER_GAP, 0)
    in_order = established()
    for slot in range(10_000, 13_000):
        in_order.deliver(slot, version=0, stale=True)
    assert in_order.state.lost == 0, "a slow link delays all alike"


def test_a_lost_disk_is_free_for_a_peer_with_savings() -> None:
    learner = established()
    learner.deliver_all(range(5_000_000, 5_000_100))
    learner.now += MISSING_S
    learner.deliver(5_000_100)
    assert (learner.state.lost, learner.state.debt) == (COUNTED_PER_GAP, 0)


def test_gaps_are_bounded_and_those_that_close_make_room() -> None:
    learner = Learner()
    learner.deliver_all(range(0, 1_000, 8))
    assert len(learner.state.gaps) == MAX_OPEN_GAPS
    assert learner.turned_away[0] == 8 * (MAX_OPEN_GAPS + 1)
    learner.deliver(8 * MAX_OPEN_GAPS + 1)
    learner.deliver(3)
    assert learner.turned_away[-1] == 3, "it would split a gap"
    learner.deliver_all([1, 7])
    assert learner.turned_away[-1] == 3
    learner.deliver_all(range(2, 7))
    learner.deliver(8 * (MAX_OPEN_GAPS + 1))
    assert learner.turned_away[-1] == 3
    assert len(learner.state.gaps) == MAX_OPEN_GAPS
    assert len(encode(learner.state)) < 4_096


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


def test_debt_and_savings_are_bounded() -> None:
    learner = established()
    for _ in range(20):
        first = learner.state.next_slot
        learner.deliver_all(range(first + 1, first + 20 * MAX_OPEN_GAPS, 8))
        learner.now += MISSING_S
        learner.deliver_all(range(learner.state.next_slot, learner.state.next_slot + LATER_SLOTS + 1))
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


def test_gaps_that_have_grown_old_make_room() -> None:
    learner = Learner()
    learner.deliver_all(range(0, 16 * MAX_OPEN_GAPS, 8))
    blocked = learner.turned_away[0]
    assert not slot_accounts.has_room(learner.state, blocked)
    later = slot_accounts.swept(learner.state, learner.now + MISSING_S, has_work)
    assert slot_accounts.has_room(later, blocked)
    assert later.lost == COUNTED_PER_GAP * (MAX_OPEN_GAPS - LATER_SLOTS // 8)
