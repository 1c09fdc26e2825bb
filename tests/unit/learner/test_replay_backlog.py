"""Backlog of stored groups: turns of the peers, newest first, and a budget for newcomers."""

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
    budget: int = 0,
    newest_first: bool = True,
    verified: dict[bytes, int] | None = None,
) -> ReplayBacklog:
    config = BacklogConfig(batch_groups=batch, budget_groups=budget, newest_first=newest_first)
    made = ReplayBacklog(config, verified=verified or {})
    for each in groups:
        made.add(each)
    return made


peers_and_versions = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=30)


@given(peers_and_versions, st.integers(0, 12), st.integers(1, 6), st.integers(0, 4), st.booleans())
def test_batches_keep_their_bounds_and_every_group_is_settled_once(
    waiting: list[tuple[int, int]], wanted: int, most: int, budget: int, newest_first: bool
) -> None:
    groups = [group(*each) for each in waiting]
    queue = backlog(groups, batch=most, budget=budget, newest_first=newest_first)
    chosen: list[WaitingGroup] = []
    left = budget
    while queue.has_work(wanted, lambda _: True):
        batch = queue.next_batch(wanted)
        assert 0 < len(batch) <= most
        assert queue.next_batch(wanted) == [], "one batch at a time"
        assert queue.in_replay == len(batch)
        left -= max(0, len(batch) - wanted)
        assert left >= 0
        queue.settled([each.digest for each in batch])
        chosen += batch
    assert len({each.digest for each in chosen}) == len(chosen)
    assert len(queue) == len(groups) - len(chosen)
    if wanted:
        assert {each.digest for each in chosen} == {each.digest for each in groups}, "nothing starves"
    else:
        assert len(chosen) == min(budget, len(groups))


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


def test_budget_goes_to_peers_without_standing() -> None:
    known, fresh = group(1, 9), group(2, 1)
    others = [group(1, 8), group(1, 7), group(2, 0)]
    verified = {known.peer: STANDING_GROUPS, fresh.peer: STANDING_GROUPS - 1}
    queue = backlog([known, fresh, *others], budget=2, verified=verified)
    assert set(queue.next_batch(1)) == {known, fresh, others[2]}
    queue.settled([known.digest, fresh.digest, others[2].digest])
    assert queue.next_batch(0) == [], "the budget of this update is spent"
    queue.peer_verified(fresh.peer)
    queue.update_begun()
    late = group(2, 9)
    queue.add(late)
    assert set(queue.next_batch(0)) == {late, others[0]}, "both have standing now, so turns decide"


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
