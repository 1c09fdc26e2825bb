"""Who is sent home by a learner's heads: never by an old one, and late-comers not before others could contradict."""

from __future__ import annotations

import itertools

from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.run_end import RunEnd

NOW = 1_800_000_000.0
MINUTE_S = 60.0


class Listener:
    """A peer that holds a policy of update 0, and whose clock the test moves."""

    def __init__(self, *, policy: int | None = 0) -> None:
        self.farewell = RunEnd()
        self.now = NOW
        if policy is not None:
            self.farewell.on_policy(policy)

    def hears(self, height: int, step: int, *, finished: bool, said_at: float | None = None) -> bool:
        """Whether it believes the run over at once."""
        head = LedgerHead(height, bytes(32), step, finished)
        self.farewell.on_head(head, int((self.now if said_at is None else said_at) * 1000), now=self.now)
        return self.farewell.is_over(self.now)


def test_a_farewell_is_obeyed_and_a_repeated_one_is_not() -> None:
    peer = Listener()
    assert peer.hears(10, 5, finished=True)
    peer.now += MINUTE_S
    assert not peer.hears(10, 5, finished=False), "taken up again"
    assert not peer.hears(10, 5, finished=True, said_at=NOW)
    peer.now += MINUTE_S
    assert not peer.hears(12, 6, finished=False)
    assert not peer.hears(10, 5, finished=True, said_at=NOW)
    peer.now += MINUTE_S
    assert not peer.hears(13, 5, finished=True), "fewer updates than were heard of"
    assert peer.hears(13, 7, finished=True)
    assert peer.hears(12, 6, finished=False, said_at=NOW + 2 * MINUTE_S), "an older head undoes nothing"


def test_heads_say_the_same_in_any_order() -> None:
    heads = [(1, True, 0.0), (1, False, 0.01), (2, False, 0.02), (2, True, 0.02)]
    for order in itertools.permutations(heads):
        peer = Listener()
        said = [peer.hears(height, 1, finished=finished, said_at=NOW + after) for height, finished, after in order]
        assert said[-1], order


def test_a_farewell_minutes_older_than_another_head_is_a_repetition() -> None:
    peer = Listener()
    peer.hears(5, 5, finished=False)
    assert not peer.hears(6, 6, finished=True, said_at=NOW - 10 * MINUTE_S)
    peer.now += 60 * MINUTE_S
    assert not peer.farewell.is_over(peer.now)


def test_who_knows_a_later_policy_is_not_sent_home() -> None:
    peer = Listener(policy=5)
    assert peer.hears(5, 5, finished=True)
    peer.farewell.on_policy(5)
    assert peer.farewell.is_over(peer.now)
    peer.farewell.on_policy(6)
    assert not peer.farewell.is_over(peer.now)
    assert not peer.hears(5, 5, finished=True)
    peer.now += 1
    assert peer.hears(8, 6, finished=True)


def test_a_newcomer_leaves_a_finished_run_but_not_before_anyone_could_contradict() -> None:
    for said_at in (NOW, NOW - 3_600, NOW - 6 * 86_400):
        peer = Listener(policy=None)
        assert not peer.hears(9, 9, finished=True, said_at=said_at)
        peer.now += MINUTE_S
        assert peer.farewell.is_over(peer.now), "nobody knew better"


def test_a_newcomer_does_not_obey_a_replayed_farewell_of_a_run_that_goes_on() -> None:
    by_policy, by_head = Listener(policy=None), Listener(policy=None)
    for peer in (by_policy, by_head):
        peer.hears(9, 9, finished=True, said_at=NOW - 3_600)
        peer.now += 2
    by_policy.farewell.on_policy(11)
    by_head.hears(12, 11, finished=False)
    for peer in (by_policy, by_head):
        for _ in range(10):
            peer.now += MINUTE_S
            assert not peer.hears(9, 9, finished=True, said_at=NOW - 3_600)


def test_repeating_an_old_farewell_neither_hastens_nor_delays_it() -> None:
    peer = Listener()
    over_after = 0
    while not peer.hears(9, 9, finished=True, said_at=NOW - 3_600):
        peer.now += 1
        over_after += 1
        assert over_after < 60
    assert over_after > 10
