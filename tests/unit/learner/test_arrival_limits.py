"""Limits of arriving groups: rates and room of one key and of all newcomers, which never bind where nobody is known."""

from __future__ import annotations

import pytest

from p2prl.learner.intake.arrival_limits import (
    GROUPS_AT_ONCE,
    GROUPS_PER_S,
    KNOWN_ACTIVE_S,
    LEAST_WAITING,
    MAX_KEYS,
    MAX_WAITING,
    MAX_WAITING_BYTES,
    NEWCOMER_GROUPS_AT_ONCE,
    NEWCOMER_GROUPS_PER_S,
    ArrivalLimits,
)
from p2prl.learner.intake.replay_backlog import Held
from p2prl.protocol import limits
from p2prl.protocol.standing import Rank

NOW = 1_800_000_000.0


def waiting(peers: int, groups: int, size_bytes: int = 0, rank: Rank = Rank.NEWCOMER) -> dict[Rank, tuple[int, Held]]:
    """What waits, all of it of peers of one class."""
    return dict.fromkeys(Rank, (0, Held())) | {rank: (peers, Held(groups, size_bytes))}


def test_one_key_has_its_burst_and_then_its_rate() -> None:
    arrivals = ArrivalLimits()
    assert sum(arrivals.take(b"a", Rank.KNOWN, NOW) for _ in range(2 * GROUPS_AT_ONCE)) == GROUPS_AT_ONCE
    taken = sum(arrivals.take(b"a", Rank.KNOWN, NOW + number / 100) for number in range(1, 1001))
    assert taken == pytest.approx(10 * GROUPS_PER_S, abs=1)
    assert arrivals.take(b"b", Rank.KNOWN, NOW), "another key has its own"
    assert not arrivals.take(b"a", Rank.KNOWN, NOW), "a clock that goes back gives nothing"


def test_newcomers_share_a_rate_while_known_peers_deliver() -> None:
    arrivals = ArrivalLimits()
    arrivals.take(b"known", Rank.KNOWN, NOW)
    taken = [arrivals.take(b"%d" % number, Rank.NEWCOMER, NOW) for number in range(1000)]
    assert sum(taken) == NEWCOMER_GROUPS_AT_ONCE
    later = sum(arrivals.take(b"%d" % number, Rank.DISTRUSTED, NOW + 10 + number / 1e6) for number in range(1000))
    assert later == 10 * NEWCOMER_GROUPS_PER_S
    assert arrivals.take(b"known", Rank.KNOWN, NOW + 10), "which takes nothing from known peers"


def test_newcomers_alone_are_not_held_up() -> None:
    arrivals = ArrivalLimits()
    assert all(arrivals.take(b"%d" % number, Rank.NEWCOMER, NOW) for number in range(2 * NEWCOMER_GROUPS_AT_ONCE))
    arrivals.take(b"known", Rank.KNOWN, NOW)
    quiet = NOW + KNOWN_ACTIVE_S + 1
    assert all(arrivals.take(b"%d" % number, Rank.NEWCOMER, quiet) for number in range(2 * NEWCOMER_GROUPS_AT_ONCE))


def test_keys_remembered_are_bounded() -> None:
    arrivals = ArrivalLimits()
    for number in range(MAX_KEYS + 10):
        arrivals.take(b"%d" % number, Rank.NEWCOMER, NOW)
    assert len(arrivals._buckets) == MAX_KEYS


def test_room_of_known_peers_is_their_own() -> None:
    arrivals = ArrivalLimits()
    full = waiting(9, 10**6, 10**12)
    most = limits.MAX_UNCHECKED_GROUPS_PER_PEER
    assert arrivals.has_room(Rank.KNOWN, Held(most - 1), 10**6, full)
    assert not arrivals.has_room(Rank.KNOWN, Held(most), 10**6, waiting(0, 0))


@pytest.mark.parametrize("rank", MAX_WAITING)
def test_room_of_other_classes_is_bounded_in_groups_and_bytes(rank: Rank) -> None:
    arrivals = ArrivalLimits()
    most = MAX_WAITING[rank]
    assert arrivals.has_room(rank, Held(), 1, waiting(9, most - 1, rank=rank))
    assert not arrivals.has_room(rank, Held(), 1, waiting(9, most, rank=rank))
    assert arrivals.has_room(rank, Held(), 1, waiting(1, 1, MAX_WAITING_BYTES - 1, rank=rank))
    assert not arrivals.has_room(rank, Held(), 2, waiting(1, 1, MAX_WAITING_BYTES - 1, rank=rank))


def test_newcomers_share_their_room() -> None:
    arrivals = ArrivalLimits()
    alone = limits.MAX_UNCHECKED_GROUPS_PER_PEER
    assert arrivals.has_room(Rank.NEWCOMER, Held(alone - 1), 1, waiting(8, 1000))
    assert arrivals.has_room(Rank.NEWCOMER, Held(39), 1, waiting(50, 1000))
    assert not arrivals.has_room(Rank.NEWCOMER, Held(40), 1, waiting(50, 1000))
    assert arrivals.has_room(Rank.NEWCOMER, Held(LEAST_WAITING - 1), 1, waiting(2000, 2000))
    assert not arrivals.has_room(Rank.NEWCOMER, Held(LEAST_WAITING), 1, waiting(2000, 2000))
