"""Standings of peers: earned by good groups, shared by the keys of one owner, restored, and bounded in number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.intake.batch_caps import Contributor
from p2prl.learner.intake.peer_standings import PeerStandings, usual_work
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.standing import Rank
from tests.unit.judged import judged

NOW = 1_800_000_000.0
WEEK_S = 7 * 24 * 3600.0


class SetClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> float:
        return self.time


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def test_eight_good_groups_make_a_peer_known_and_weeks_of_absence_a_newcomer(clock: SetClock) -> None:
    standings = PeerStandings(clock)
    for _ in range(8):
        assert standings.rank(b"a") is Rank.NEWCOMER
        standings.note([judged(b"a")], clock.time)
    assert standings.rank(b"a") is Rank.KNOWN
    assert standings.contributor(b"a").is_known
    clock.time += 4 * WEEK_S
    assert standings.rank(b"a") is Rank.NEWCOMER


def test_full_standing_takes_half_of_the_usual_work(clock: SetClock) -> None:
    standings = PeerStandings(clock)
    standings.restore([(b"old", NOW, 60, 0), (b"older", NOW, 60, 0)])
    for settled in range(1, 60):
        standings.note([judged(b"a")], clock.time)
        assert standings.contributor(b"a").is_known == (standings.rank(b"a") is Rank.KNOWN) == (settled >= 30)
        assert standings.contributor(b"a").is_proven == (settled >= 8)
    standings.restore([(b"much", NOW, 100_000, 0)])
    for _ in range(64 - 59):
        assert standings.rank(b"a") is Rank.NEWCOMER
        standings.note([judged(b"a")], clock.time)
    assert standings.rank(b"a") is Rank.KNOWN, "64 are enough in any run"


def test_what_others_have_settled_counts_less_with_time(clock: SetClock) -> None:
    standings = PeerStandings(clock)
    standings.restore([(b"gone", NOW - 3 * WEEK_S, 320, 0)])
    for settled in range(1, 30):
        standings.note([judged(b"a")], clock.time)
        assert (standings.rank(b"a") is Rank.KNOWN) == (settled >= 20), settled


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40), st.integers(0, 300))
def test_usual_work_is_that_of_the_author_of_the_middle_group(settled: list[int], crowd: int) -> None:
    by_group = sorted(each for each in settled for _ in range(each))
    assert usual_work(settled) == by_group[len(by_group) // 2]
    assert usual_work([]) == 0.0
    least = min(settled)
    few = [0.5 * least * sum(settled) / (sum(settled) + crowd)] * (crowd > 0)
    assert usual_work([*settled, *few]) >= least, (
        "keys with less than half of the work do not lower it below the others'"
    )
    assert usual_work([*settled, sum(settled)]) <= sum(settled)


def test_missing_slots_take_back_settled_groups_until_they_arrive(clock: SetClock) -> None:
    charged = {b"a": 0}
    standings = PeerStandings(clock, charged=lambda peer: charged.get(peer, 0))
    for _ in range(48):
        standings.note([judged(b"a")], clock.time)
    for missing, known, proven in ((0, True, True), (1, True, True), (2, False, True), (3, False, False)):
        charged[b"a"] = missing
        assert standings.contributor(b"a") == Contributor(b"a", is_known=known, is_proven=proven)
        assert standings.rank(b"a") is (Rank.KNOWN if known else Rank.NEWCOMER)
    charged[b"a"] = 0
    assert standings.rank(b"a") is Rank.KNOWN


def test_a_machine_has_a_part_in_its_owners_standing_after_eight_groups_of_its_own(clock: SetClock) -> None:
    standings = PeerStandings(clock, identity_of=lambda peer: b"owner")
    for _ in range(8):
        assert not standings.contributor(b"old").is_known
        standings.note([judged(b"old")], clock.time)
    assert standings.contributor(b"old").is_known
    for _ in range(8):
        assert standings.rank(b"new") is Rank.NEWCOMER
        assert standings.contributor(b"new") == Contributor(b"owner", is_known=False, is_proven=False)
        standings.note([judged(b"new")], clock.time)
    assert standings.contributor(b"new") == standings.contributor(b"old")


def test_a_peer_is_distrusted_while_more_failed_than_passed(clock: SetClock) -> None:
    standings = PeerStandings(clock)
    standings.note([judged(b"a", RejectionReason.SEED_MISMATCH)], clock.time)
    assert standings.rank(b"a") is Rank.DISTRUSTED
    standings.note([judged(b"a")], clock.time)
    assert standings.rank(b"a") is Rank.NEWCOMER


def test_the_keys_of_an_owner_share_one_standing(clock: SetClock) -> None:
    standings = PeerStandings(clock, identity_of=lambda peer: b"owner" if peer in (b"a", b"b") else peer)
    for peer in (b"a", b"b") * 8:
        standings.note([judged(peer)], clock.time)
    assert standings.rank(b"a") is standings.rank(b"b") is Rank.KNOWN
    assert standings.contributor(b"a") == standings.contributor(b"b")
    assert standings.identity(b"a") == b"owner"
    assert standings.rank(b"c") is Rank.NEWCOMER


def owned(clock: SetClock) -> PeerStandings:
    """Standings of machines that all have one owner, of whose groups many have failed."""
    standings = PeerStandings(clock, identity_of=lambda peer: b"owner" if peer != b"stranger" else peer)
    for _ in range(9):
        standings.note([judged(b"a", RejectionReason.SEED_MISMATCH)], clock.time)
    return standings


def test_a_stolen_key_is_excluded_alone(clock: SetClock) -> None:
    standings = owned(clock)
    for _ in range(15):
        assert standings.forged(b"stolen")
        clock.time += 60.0
    assert standings.forged(b"stolen too")
    assert [standings.is_excluded(peer) for peer in (b"stolen", b"stolen too", b"a")] == [True, False, False]
    assert [standings.tells(b"stolen") for _ in range(5)] == [True] * 4 + [False]


def test_an_owner_is_excluded_when_several_keys_forge(clock: SetClock) -> None:
    standings = owned(clock)
    for number in range(3):
        assert not standings.is_excluded(b"a")
        standings.forged(b"delegate %d" % number)
    assert all(standings.is_excluded(peer) for peer in (b"a", b"delegate 9"))
    assert not standings.is_excluded(b"stranger")
    assert [standings.tells(b"a") for _ in range(5)] == [True] * 4 + [False]
    clock.time += 3600.0
    assert not standings.is_excluded(b"a")


def test_keys_of_an_owner_that_forged_on_different_days_exclude_nobody(clock: SetClock) -> None:
    standings = owned(clock)
    for number in range(9):
        standings.forged(b"delegate %d" % (number % 4))
        clock.time += 13 * 3600.0
    assert not any(standings.is_excluded(b"delegate %d" % number) for number in range(5))


def test_a_journal_restores_standings_and_exclusions(clock: SetClock) -> None:
    standings = PeerStandings(clock)
    standings.restore(
        [(b"a", NOW - 10, 5, 0), (b"old", NOW - 8 * WEEK_S, 9, 0), (b"a", NOW, 3, 0), (b"c", NOW, 0, 3)],
        [(b"c", NOW)] * 3,
    )
    assert [standings.rank(peer) for peer in (b"a", b"old", b"c")] == [Rank.KNOWN, Rank.NEWCOMER, Rank.DISTRUSTED]
    assert standings.is_excluded(b"c")
    assert not standings.is_excluded(b"a")
    clock.time += 3600.0
    assert not standings.is_excluded(b"c"), "a machine that was repaired comes back"


def test_forgeries_of_a_peer_with_much_good_work_are_not_held_against_it(clock: SetClock) -> None:
    standings = PeerStandings(clock)
    for _ in range(100):
        standings.note([judged(b"a")], clock.time)
    for _ in range(4):
        standings.note([judged(b"a", RejectionReason.SEED_MISMATCH)], clock.time)
        assert not standings.forged(b"a")
    assert not standings.is_excluded(b"a")


def test_fresh_keys_push_out_each_other_before_a_known_peer(clock: SetClock) -> None:
    standings = PeerStandings(clock, most=10)
    for _ in range(8):
        standings.note([judged(b"known")], clock.time)
    for number in range(100):
        standings.note([judged(b"%d" % number, RejectionReason.SEED_MISMATCH)], clock.time)
    assert len(standings) == 10
    assert standings.rank(b"known") is Rank.KNOWN


def test_a_past_in_times_to_come_counts_as_now(clock: SetClock) -> None:
    standings = PeerStandings(clock)
    month = 30 * 86_400.0
    standings.restore([(b"a", NOW + month, 9, 0), (b"c", NOW + month, 0, 3)], [(b"c", NOW + month)] * 3)
    assert standings.rank(b"a") is Rank.KNOWN
    assert standings.is_excluded(b"c")
    clock.time += 3600.0
    assert not standings.is_excluded(b"c")
    clock.time += 8 * WEEK_S
    assert standings.rank(b"a") is Rank.NEWCOMER, "it is forgotten in time"
