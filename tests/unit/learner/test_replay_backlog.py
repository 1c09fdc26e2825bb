"""Backlog of stored groups: turns of the peers, newest first, and surplus replays of newcomers and of old groups."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.intake.replay_backlog import NEWCOMER_SHARE, BacklogConfig, Held, ReplayBacklog, WaitingGroup
from p2prl.protocol.digests import digest
from p2prl.protocol.standing import Rank

NUMBERS = itertools.count()


def group(peer: int, version: int, size: int = 1_000) -> WaitingGroup:
    return WaitingGroup(digest("p2prl/test", next(NUMBERS).to_bytes(8, "big")), bytes([peer]) * 32, version, size)


def backlog(
    groups: Iterable[WaitingGroup] = (),
    *,
    batch: int = 100,
    surplus_share: float = 0.0,
    newest_first: bool = True,
    in_time: int = 0,
    ranks: Mapping[bytes, Rank] = MappingProxyType({}),
    owners: Mapping[bytes, bytes] = MappingProxyType({}),
) -> ReplayBacklog:
    config = BacklogConfig(batch_groups=batch, surplus_share=surplus_share, newest_first=newest_first, in_time=in_time)
    made = ReplayBacklog(
        config, rank=lambda peer: ranks.get(peer, Rank.NEWCOMER), author=lambda peer: owners.get(peer, peer)
    )
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


@pytest.mark.parametrize("clears", [True, False])
@given(peers_and_versions, st.integers(1, 12))
def test_peers_take_turns_each_with_what_expires_soonest_or_its_latest_if_too_many_wait(
    clears: bool, waiting: list[tuple[int, int]], wanted: int
) -> None:
    groups = [group(*each) for each in waiting]
    batch = backlog(groups, in_time=len(groups) - (not clears)).next_batch(wanted)
    assert len(batch) == min(wanted, len(groups))
    taken = Counter(each.peer for each in batch)
    for peer, mine in Counter(each.peer for each in groups).items():
        assert taken[peer] >= min(mine, max(taken.values(), default=0) - 1), "nobody is two turns ahead"
        own = [each for each in groups if each.peer == peer]
        order = sorted(own, key=lambda each: each.version) if clears else own[::-1]
        assert {each.digest for each in batch if each.peer == peer} == {each.digest for each in order[: taken[peer]]}


@pytest.mark.parametrize("in_time", [0, 400])
def test_an_honest_backlog_that_can_be_cleared_in_time_loses_nothing(in_time: int) -> None:
    """Each settled group is replaced at once, as volunteers that wait for the learner do; a tenth took long to sample.

    With a bound of 64 updates of 8 groups, 200 waiting groups are 25 updates: latest first lets the old ones age.
    """
    bound, size = 64, 8
    queue = backlog([group(number % 3, 0) for number in range(200)], batch=size, in_time=in_time)
    lost: list[WaitingGroup] = []
    ages: list[int] = []
    for step in range(1, 300):
        stale = queue.useless(lambda each, now=step: now - each.version <= bound, 10_000)  # type: ignore[misc]
        queue.settled([each.digest for each in stale])
        batch = settled(queue, size)
        ages += [step - each.version for each in batch]
        lost += stale
        for number in range(len(batch) + len(stale)):
            late = 30 if (step + number) % 10 == 0 else 0
            queue.add(group(number % 3, max(0, step - late)))
    if in_time:
        assert lost == []
        assert max(ages) <= 30 + 2 * 25
    else:
        assert len(lost) > 100
        assert max(ages) <= bound


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


def settled(queue: ReplayBacklog, wanted: int) -> list[WaitingGroup]:
    """The next batch, which is settled at once."""
    batch = queue.next_batch(wanted)
    queue.settled([each.digest for each in batch])
    return batch


def test_surplus_replays_give_known_peers_the_larger_part_and_each_what_expires_soonest() -> None:
    known = [group(1, version) for version in (9, 4, 6)]
    other = [group(3, version) for version in (8, 5)]
    newcomer = [group(2, 9), group(2, 7)]
    ranks = {known[0].peer: Rank.KNOWN, other[0].peer: Rank.KNOWN}
    queue = backlog([*known, *other, *newcomer], batch=2, surplus_share=1.0, ranks=ranks)
    queue.update_ended(9.0)
    for expected in ([newcomer[1], known[1]], [newcomer[0], other[1]], [known[2], other[0]], [known[0]]):
        assert set(settled(queue, 0)) == set(expected)


@pytest.mark.parametrize("wanted", [0, 8])
def test_a_flood_of_keys_gets_its_share_of_the_time_however_many_they_are(wanted: int) -> None:
    honest = {bytes([peer]) * 32: Rank.KNOWN for peer in range(3)}
    queue = backlog([group(peer, 5) for peer in range(3) for _ in range(90)], batch=8, surplus_share=9.0, ranks=honest)
    seconds = dict.fromkeys((True, False), 0.0)
    for update in range(20):
        for key in range(100, 116):  # new keys, each with the newest version
            queue.add(group(key + update * 5, 9))
        queue.update_ended(90.0)
        batch = queue.next_batch(wanted)
        cost = {is_honest: 0.5 * sum((each.peer in honest) is is_honest for each in batch) for is_honest in seconds}
        queue.replay_ended(sum(cost.values()), newcomers_s=cost[False])
        queue.settled([each.digest for each in batch])
        seconds = {is_honest: seconds[is_honest] + cost[is_honest] for is_honest in seconds}
    total = sum(seconds.values())
    assert 0.1 * total <= seconds[False] <= NEWCOMER_SHARE * total + 2.0


def test_cheap_checks_of_newcomers_let_more_of_them_in_but_never_more_than_half() -> None:
    known = {bytes([1]) * 32: Rank.KNOWN}
    queue = backlog([group(1, 5) for _ in range(90)], batch=10, ranks=known)
    for key in range(100, 200):
        queue.add(group(key, 5))
    newcomers = []
    for _ in range(4):
        batch = queue.next_batch(10)
        newcomers.append(sum(each.peer not in known for each in batch))
        queue.replay_ended(1.0, newcomers_s=0.01 * newcomers[-1])
        queue.settled([each.digest for each in batch])
    assert newcomers == [2, 5, 5, 5]


def test_newcomers_fill_the_places_that_known_peers_leave() -> None:
    known = {bytes([1]) * 32: Rank.KNOWN}
    groups = [group(1, 5), *(group(key, 5) for key in range(100, 112))]
    assert len(backlog(groups, batch=10, ranks=known).next_batch(10)) == 10
    assert len(backlog(groups[1:], batch=10, ranks=known).next_batch(10)) == 10


def test_only_known_peers_replace_newcomers_in_the_buffer() -> None:
    known = {bytes([1]) * 32: Rank.KNOWN}
    groups = [group(1, 5), group(1, 4), group(1, 3), group(100, 9)]
    queue = backlog(groups, ranks=known)
    assert not queue.has_work(0, lambda _: True)
    assert queue.has_work(0, lambda _: True, wanted_of_known=2)
    assert queue.next_batch(0, wanted_of_known=2) == groups[1:3]
    assert not queue.is_surplus
    queue.settled([each.digest for each in groups[:3]])
    assert not queue.has_work(0, lambda _: True, wanted_of_known=2)
    assert queue.next_batch(0, wanted_of_known=2) == []


def test_newcomers_name_one_version_more_than_known_peers() -> None:
    """Each version in a batch has to be loaded."""
    known = {bytes([1]) * 32: Rank.KNOWN}
    groups = [*(group(1, 9) for _ in range(40)), *(group(100 + key, key % 10) for key in range(40))]
    queue = backlog(groups, batch=20, newest_first=False, ranks=known)
    assert len({each.version for each in queue.next_batch(20)}) == 2


def test_peers_whose_groups_failed_come_after_all_others() -> None:
    cheat, newcomer, known = group(1, 9), group(2, 1), group(3, 1)
    ranks = {cheat.peer: Rank.DISTRUSTED, known.peer: Rank.KNOWN}
    queue = backlog([cheat, newcomer, group(1, 8), known], batch=1, ranks=ranks)
    assert [settled(queue, 1)[0].peer for _ in range(4)] == [newcomer.peer, known.peer, cheat.peer, cheat.peer]


def test_what_waits_is_counted_by_peer_and_by_class() -> None:
    one, two, other = group(1, 5, size=10), group(1, 6, size=20), group(2, 5, size=40)
    queue = backlog([one, two, other], ranks={other.peer: Rank.KNOWN})
    assert queue.held(one.peer) == Held(2, 30)
    assert queue.held_by_rank()[Rank.NEWCOMER] == (1, Held(2, 30))
    queue.settled([one.digest])
    assert queue.held(one.peer) == Held(1, 20)
    queue.settled([one.digest, two.digest])
    assert queue.held_by_rank() == {
        Rank.NEWCOMER: (0, Held()),
        Rank.DISTRUSTED: (0, Held()),
        Rank.KNOWN: (1, Held(1, 40)),
    }


def test_with_more_peers_than_a_batch_holds_each_has_its_turn() -> None:
    versions = {peer: 9 if peer < 16 else 3 for peer in range(32)}
    queue = backlog([group(peer, version) for peer, version in versions.items() for _ in range(9)], batch=8)
    served: Counter[bytes] = Counter()
    for _ in range(8):
        served.update(each.peer for each in settled(queue, 8))
    assert set(served.values()) == {2}
    assert len(served) == 32


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
    assert queue.useless(lambda each: each.version > 2, 9) == [old, older]
    assert queue.useless(lambda each: each.version > 2, 1) == [old]
    assert queue.has_work(0, lambda each: each.version > 2)
    assert not queue.has_work(0, lambda _: True)
    assert queue.next_batch(1) == [older]
    assert queue.useless(lambda each: each.version > 7, 9) == [old, new], "a replay that runs is not wasted"
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


@pytest.mark.parametrize("rank", [Rank.KNOWN, Rank.NEWCOMER])
def test_an_owner_with_many_machines_has_the_turns_of_one_author(rank: Rank) -> None:
    machines = [bytes([number]) * 32 for number in range(100)]
    owners = dict.fromkeys(machines, b"owner")
    ranks = dict.fromkeys([*machines, bytes([200]) * 32], rank)
    groups = [group(number, 0) for number in range(100)] + [group(200, 0) for _ in range(20)]
    queue = backlog(groups, batch=8, ranks=ranks, owners=owners)
    for _ in range(4):
        batch = queue.next_batch(8)
        assert Counter(owners.get(each.peer, each.peer) for each in batch) == {b"owner": 4, bytes([200]) * 32: 4}
        queue.replay_ended(1.0)
        queue.settled([each.digest for each in batch])


def test_what_waits_of_an_owner_is_what_waits_of_its_machines() -> None:
    one, two, other = (group(number, 0, size=100 * number) for number in (1, 2, 3))
    owners = {one.peer: b"owner", two.peer: b"owner"}
    queue = backlog([one, two, other], owners=owners)
    assert queue.held(one.peer) == queue.held(two.peer) == queue.held(b"owner") == Held(2, 300)
    assert queue.held(other.peer) == Held(1, 300)
    assert queue.held_by_rank()[Rank.NEWCOMER] == (2, Held(3, 600))
    owners[one.peer] = b"another"  # its delegation is over: what waits counts for the owner that it had
    queue.settled([one.digest])
    assert queue.held(b"owner") == Held(1, 200)
    assert queue.held(b"another") == Held()
    queue.settled([two.digest, other.digest])
    assert queue.held_by_rank()[Rank.NEWCOMER] == (0, Held())
