"""Backlog of stored groups: turns of the peers, newest first, and surplus replays of newcomers and of old groups."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.intake.replay_backlog import STANDING_GROUPS, BacklogConfig, ReplayBacklog, WaitingGroup
from p2prl.protocol.digests import digest

NUMBERS = itertools.count()


def group(peer: int, version: int, size: int = 1_000) -> WaitingGroup:
    return WaitingGroup(digest("p2prl/test", next(NUMBERS).to_bytes(8, "big")), bytes([peer]) * 32, version, size)


def backlog(
    groups: Iterable[WaitingGroup] = (),
    *,
    batch: int = 100,
    surplus_share: float = 0.0,
    newest_first: bool = True,
    verified: dict[bytes, int] | None = None,
) -> ReplayBacklog:
    config = BacklogConfig(batch_groups=batch, surplus_share=surplus_share, newest_first=newest_first)
    made = ReplayBacklog(config, verified=verified or {})
    for each in groups:
        made.add(each)
    return made


peers_and_versions = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=30)


@given(peers_and_versions, st.integers(0, 12), st.integers(1, 6), st.integers(0, 4), st.booleans())
def test_batches_keep_their_bounds_and_every_group_is_settled_once(
    waiting: list[tuple[int, int]], wanted: int, most: int, surplus_batches: int, newest_first: bool
) -> None:
    groups = [group(*each) for each in waiting]
    queue = backlog(groups, batch=most, surplus_share=0.5, newest_first=newest_first)
    queue.update_ended(2.0 * surplus_batches)
    chosen: list[WaitingGroup] = []
    while queue.has_work(wanted, lambda _: True):
        batch = queue.next_batch(wanted)
        assert 0 < len(batch) <= min(most, wanted or most)
        assert queue.is_surplus == (not wanted)
        assert queue.next_batch(wanted) == [], "one batch at a time"
        assert queue.in_replay == len(batch)
        queue.replay_ended(1.0)
        queue.settled([each.digest for each in batch])
        chosen += batch
    assert len({each.digest for each in chosen}) == len(chosen)
    assert len(queue) == len(groups) - len(chosen)
    if wanted:
        assert {each.digest for each in chosen} == {each.digest for each in groups}, "nothing starves"
    else:
        assert len(chosen) == min(surplus_batches * most, len(groups))


@given(peers_and_versions, st.integers(1, 12))
def test_peers_take_turns_each_with_its_newest(waiting: list[tuple[int, int]], wanted: int) -> None:
    groups = [group(*each) for each in waiting]
    batch = backlog(groups).next_batch(wanted)
    assert len(batch) == min(wanted, len(groups))
    taken = Counter(each.peer for each in batch)
    for peer, mine in Counter(each.peer for each in groups).items():
        assert taken[peer] >= min(mine, max(taken.values(), default=0) - 1), "nobody is two turns ahead"
        versions = sorted((each.version for each in groups if each.peer == peer), reverse=True)
        assert sorted((each.version for each in batch if each.peer == peer), reverse=True) == versions[: taken[peer]]


@given(peers_and_versions, st.integers(1, 12))
def test_by_arrival_the_oldest_of_each_peer_come_first(waiting: list[tuple[int, int]], wanted: int) -> None:
    groups = [group(*each) for each in waiting]
    batch = backlog(groups, newest_first=False).next_batch(wanted)
    turns = {peer: [each for each in groups if each.peer == peer] for peer in {each.peer for each in groups}}
    expected = [
        each for turn in itertools.zip_longest(*sorted(turns.values(), key=lambda mine: groups.index(mine[0])))
        for each in sorted((one for one in turn if one is not None), key=groups.index)
    ]  # fmt: skip
    assert batch == expected[:wanted]


def test_receipts_keep_the_order_of_arrival() -> None:
    groups = [group(1, 0), group(1, 5), group(2, 3), group(1, 4)]
    assert backlog(groups).next_batch(9) == [groups[0], groups[2], groups[1], groups[3]]


def test_surplus_replays_are_of_newcomers_then_of_what_expires_soonest() -> None:
    known = [group(1, version) for version in (9, 4, 6)]
    other = [group(3, version) for version in (8, 5)]
    newcomer = [group(2, 9), group(2, 7)]
    verified = {known[0].peer: STANDING_GROUPS, other[0].peer: 99, newcomer[0].peer: STANDING_GROUPS - 1}
    queue = backlog([*known, *other, *newcomer], batch=2, surplus_share=1.0, verified=verified)
    queue.update_ended(9.0)
    for expected in (newcomer, [known[1], other[1]], [known[2], other[0]], [known[0]]):
        batch = queue.next_batch(0)
        assert set(batch) == set(expected)
        queue.settled([each.digest for each in batch])


def test_a_peer_whose_groups_are_verified_loses_the_turn_of_a_newcomer() -> None:
    newcomer, known = group(2, 9), group(1, 1)
    verified = {known.peer: STANDING_GROUPS, newcomer.peer: STANDING_GROUPS - 1}
    queue = backlog([newcomer, known], batch=1, surplus_share=1.0, verified=verified)
    queue.peer_verified(newcomer.peer)
    queue.update_ended(1.0)
    assert queue.next_batch(0) == [known], "both have standing now, and this one expires first"


def test_surplus_replays_take_their_share_of_the_time_and_a_long_one_is_paid_back() -> None:
    queue = backlog([group(1, 0) for _ in range(40)], batch=1, surplus_share=0.25)

    def surplus_batches(seconds_each: float) -> int:
        count = 0
        while queue.has_work(0, lambda _: True):
            (chosen,) = queue.next_batch(0)
            queue.replay_ended(seconds_each)
            queue.settled([chosen.digest])
            count += 1
        return count

    assert surplus_batches(1.0) == 0, "no update has ended"
    queue.update_ended(8.0)
    assert surplus_batches(1.0) == 2
    queue.update_ended(8.0)
    assert surplus_batches(5.0) == 1, "2 seconds allowed, 5 taken"
    queue.update_ended(8.0)
    assert surplus_batches(1.0) == 0, "1 second of debt left"
    queue.update_ended(8.0)
    assert surplus_batches(1.0) == 1
    for _ in range(9):
        queue.update_ended(4.0)
    assert surplus_batches(1.0) == 1, "unused time is not saved up"


def test_replays_that_the_buffer_wants_cost_no_surplus_time() -> None:
    queue = backlog([group(1, version) for version in range(3)], batch=1, surplus_share=1.0)
    queue.update_ended(1.0)
    (chosen,) = queue.next_batch(1)
    queue.replay_ended(60.0)
    queue.settled([chosen.digest])
    assert len(queue.next_batch(0)) == 1


def test_useless_groups_are_named_and_not_while_in_replay() -> None:
    old, new, older = group(1, 2), group(1, 7), group(2, 1)
    queue = backlog([old, new, older])
    assert queue.useless(lambda version: version > 2, 9) == [old, older]
    assert queue.useless(lambda version: version > 2, 1) == [old]
    assert queue.has_work(0, lambda version: version > 2)
    assert not queue.has_work(0, lambda _: True)
    assert queue.next_batch(1) == [new]
    assert queue.useless(lambda version: version > 7, 9) == [old, older], "a replay that runs is not wasted"
    queue.settled([old.digest, new.digest, older.digest])
    assert (len(queue), queue.in_replay) == (0, 0)


def test_a_group_stored_twice_waits_once() -> None:
    one = group(1, 1)
    assert len(backlog([one, one])) == 1


def test_large_groups_are_replayed_a_few_at_a_time() -> None:
    groups = [group(1, 0, size=20 * 1024 * 1024) for _ in range(5)]
    queue = backlog(groups)
    for expected in (groups[:2], groups[2:4], groups[4:]):
        assert queue.next_batch(9) == expected
        queue.settled([each.digest for each in expected])
