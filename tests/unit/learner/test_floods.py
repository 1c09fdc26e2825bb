"""Floods against the pure cores of intake, in the time of a simulated learner: honest work goes on, and newcomers too.

Limits of arrival, standings, backlog and buffer are the product's; a check takes the time it would take, and an update
waits for its groups. `lab/p2prl_lab/bench/trust/floods.py` does the same with whole nodes and a model.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

import pytest

from p2prl.learner.intake.arrival_limits import ArrivalLimits
from p2prl.learner.intake.batch_caps import NEWCOMER_PERCENT
from p2prl.learner.intake.peer_standings import PeerStandings
from p2prl.learner.intake.replay_backlog import BacklogConfig, Held, ReplayBacklog, WaitingGroup
from p2prl.learner.intake.rollout_buffer import RolloutBuffer
from p2prl.learner.intake.verified_group import VerifiedGroup
from p2prl.protocol.digests import Digest
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import EngineClass, RolloutGroup
from p2prl.protocol.standing import Rank
from tests.unit.judged import judged

START = 1_800_000_000.0
GROUPS, STALENESS = 16, 8
FULL_S, PREFIX_S, UPDATE_S = 0.25, 0.05, 8.0
"""A full replay, one of the first tokens, and an update. Replays need half of the learner's time without any flood."""

EMPTY = RolloutGroup(0, bytes(32), 0, "chain4", b"", (), EngineClass("", "", "", ""), 0.0)


class SetClock:
    def __init__(self) -> None:
        self.time = START

    def now(self) -> float:
        return self.time


@dataclass
class SimulatedLearner:
    """The intake of a learner, in time."""

    clock: SetClock = field(default_factory=SetClock)
    forging: set[bytes] = field(default_factory=set)
    """Keys whose groups fail."""
    trained: list[tuple[float, list[bytes]]] = field(default_factory=list)
    """Time, and the authors of its groups, of each update."""

    def __post_init__(self) -> None:
        self.standings = PeerStandings(self.clock)
        self.limits = ArrivalLimits()
        self.buffer = RolloutBuffer(
            staleness_bound=STALENESS, ready_target=3 * GROUPS // 2, contributor=self.standings.contributor
        )
        config = BacklogConfig(batch_groups=GROUPS, surplus_share=0.1, newest_first=True)
        self.backlog = ReplayBacklog(config, rank=self.standings.rank)
        self.numbers = itertools.count()
        self.update_ends = START
        self.replay_ends = START
        self.batch: list[WaitingGroup] = []
        self.costs = (0.0, 0.0)

    def arrive(self, peer: bytes) -> None:
        """A group of the newest version."""
        rank, now = self.standings.rank(peer), self.clock.time
        if self.standings.is_excluded(peer):
            return
        waiting = {} if rank is Rank.KNOWN else self.backlog.held_by_rank()
        if not self.limits.has_room(rank, self.backlog.held(peer), 1000, waiting):
            return
        if self.limits.take(peer, rank, now):
            digest = Digest(next(self.numbers).to_bytes(32, "big"))
            self.backlog.add(WaitingGroup(digest, peer, len(self.trained), 1000))

    def work(self) -> None:
        """End and begin what is due now."""
        now, step = self.clock.time, len(self.trained)
        if self.batch and now >= self.replay_ends:
            self._settle()
        stale = self.backlog.useless(lambda group: group.version >= step - STALENESS, 99)
        self.backlog.settled([each.digest for each in stale])
        if not self.batch:
            self.batch = self.backlog.next_batch(self.buffer.wanted, wanted_of_known=self.buffer.wanted_of_known)
            ranks = [(each, self.standings.rank(each.peer) is Rank.KNOWN) for each in self.batch]
            known = sum(FULL_S for _, is_known in ranks if is_known)
            others = sum(
                PREFIX_S + FULL_S * (each.peer not in self.forging) for each, is_known in ranks if not is_known
            )
            self.costs = (known + others, others)
            self.replay_ends = now + known + others
        if now >= self.update_ends:
            self.buffer.drop_stale(step)
            if len(self.buffer) >= GROUPS:
                taken = self.buffer.take(GROUPS, step=step)
                self.trained.append((now, [group.peer for group in taken]))
                self.update_ends = now + UPDATE_S
                self.backlog.update_ended(UPDATE_S)

    def _settle(self) -> None:
        self.backlog.replay_ended(self.costs[0], newcomers_s=self.costs[1])
        for each in self.batch:
            if each.peer in self.forging:
                self.standings.note([judged(each.peer, RejectionReason.SEED_MISMATCH)], self.clock.time)
                self.standings.forged(each.peer)
                continue
            group = VerifiedGroup(each.digest, each.peer, EMPTY, each.version, b"", b"")
            if self.backlog.is_surplus:
                self.buffer.add_surplus(group)
            else:
                self.buffer.add(group)
            self.standings.note([judged(each.peer)], self.clock.time)
        self.backlog.settled([each.digest for each in self.batch])
        self.batch = []


HONEST = [b"honest %d" % number for number in range(12)]
TURN_S = 0.5


def simulate(
    flood: list[bytes], *, each_s: float = 1.0, forged: bool = False, begins: float = 120.0, ends: float = 240.0
) -> SimulatedLearner:
    """Honest peers deliver a sixth of a group a second each, a little less than is trained on; from second `begins` to
    `ends` each key of the flood delivers one every `each_s` seconds."""
    learner = SimulatedLearner(forging=set(flood) if forged else set())
    for turn in range(int(360 / TURN_S)):
        learner.clock.time = START + turn * TURN_S
        for number, peer in enumerate(HONEST):
            if turn % 12 == number:
                learner.arrive(peer)
        for number, peer in enumerate(flood):
            if begins <= turn * TURN_S < ends and (turn + number) % int(each_s / TURN_S) == 0:
                learner.arrive(peer)
        learner.work()
    return learner


def honest_groups(learner: SimulatedLearner, begin: float, end: float) -> int:
    return sum(peer in HONEST for at, peers in learner.trained if begin <= at - START < end for peer in peers)


@pytest.fixture(scope="module")
def quiet() -> SimulatedLearner:
    return simulate([])


FLOODS = {
    "forged by fifty keys": ([b"key %d" % number for number in range(50)], 2.0, True),
    "forged by one key": ([b"key"], 0.5, True),
    "a fresh key for each forgery": ([b"key %d" % number for number in range(600)], 120.0, True),
    "a hundred sybils that work": ([b"key %d" % number for number in range(100)], 30.0, False),
}


@pytest.mark.parametrize("name", FLOODS)
def test_honest_work_goes_on_during_a_flood_and_is_as_before_within_a_minute(
    name: str, quiet: SimulatedLearner
) -> None:
    keys, each_s, forged = FLOODS[name]
    flooded = simulate(keys, each_s=each_s, forged=forged)
    during = honest_groups(flooded, 120, 240) / honest_groups(quiet, 120, 240)
    after = honest_groups(flooded, 300, 360) / honest_groups(quiet, 300, 360)
    assert during >= 0.8
    # Sybils that worked were credited, and what is left of their groups has its places for a while.
    assert after >= (1.0 - 1 / honest_groups(quiet, 300, 360) if forged else 0.95)
    assert len(flooded.trained) >= len(quiet.trained), "training never waits for a cap"


def test_forgers_are_soon_excluded_and_take_no_room(quiet: SimulatedLearner) -> None:
    keys, each_s, _ = FLOODS["forged by fifty keys"]
    flooded = simulate(keys, each_s=each_s, forged=True)
    assert flooded.backlog.held_by_rank()[Rank.DISTRUSTED] == (0, Held()), "what was left has expired"
    assert flooded.standings.is_excluded(keys[0])


def test_newcomers_that_work_become_known_although_others_flood() -> None:
    flood = [b"key %d" % number for number in range(50)]
    learner = SimulatedLearner(forging=set(flood))
    late = b"late"
    for turn in range(int(300 / TURN_S)):
        learner.clock.time = START + turn * TURN_S
        for number, peer in enumerate(HONEST):
            if turn % 12 == number:
                learner.arrive(peer)
        if turn * TURN_S >= 120:
            if turn % 12 == 1:
                learner.arrive(late)
            for number, peer in enumerate(flood):
                if (turn + number) % 4 == 0:
                    learner.arrive(peer)
        learner.work()
    assert learner.standings.rank(late) is Rank.KNOWN


def test_a_newcomer_of_a_small_swarm_is_trained_on_at_once() -> None:
    learner = SimulatedLearner()
    for turn in range(int(60 / TURN_S)):
        learner.clock.time = START + turn * TURN_S
        for peer in (b"one", b"two", b"three"):
            if turn % 2 == 0:
                learner.arrive(peer)
        learner.work()
    first = Counter(learner.trained[0][1])
    assert set(first) == {b"one", b"two", b"three"}
    assert max(first.values()) <= 6


def test_sybils_that_are_new_in_every_update_stay_within_their_places() -> None:
    learner = SimulatedLearner()
    fresh = itertools.count()
    for turn in range(int(260 / TURN_S)):
        learner.clock.time = START + turn * TURN_S
        for number, peer in enumerate(HONEST):
            if turn % 10 == number or turn % 10 + 2 == number:  # a little more than is trained on
                learner.arrive(peer)
        if turn * TURN_S >= 100:
            learner.arrive(b"fresh %d" % next(fresh))
        learner.work()
    peers = Counter(peer in HONEST for at, mine in learner.trained if at - START >= 120 for peer in mine)
    assert peers[False] / peers.total() <= NEWCOMER_PERCENT / 100 + 0.01
