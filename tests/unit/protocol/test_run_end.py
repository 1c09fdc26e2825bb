"""Run end: stale final heads are ignored, and a newcomer waits until other peers could contradict one."""

from __future__ import annotations

import itertools

from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.run_end import RunEnd

NOW = 1_800_000_000.0
MINUTE_S = 60.0


class Listener:
    """A peer that holds a policy of step 0, and whose clock the test moves."""

    def __init__(self, *, policy: int | None = 0) -> None:
        self.run_end = RunEnd()
        self.now = NOW
        if policy is not None:
            self.run_end.on_policy(policy)

    def hears(self, height: int, step: int, *, finished: bool, sent_at: float | None = None) -> bool:
        """Deliver a ledger head; return whether the run is over for this peer at once."""
        head = LedgerHead(height, bytes(32), step, finished)
        self.run_end.on_head(head, int((self.now if sent_at is None else sent_at) * 1000), now=self.now)
        return self.run_end.is_over(self.now)


def test_fresh_final_head_counts_and_a_replayed_one_does_not() -> None:
    peer = Listener()
    assert peer.hears(10, 5, finished=True)
    peer.now += MINUTE_S
    assert not peer.hears(10, 5, finished=False), "resumed"
    assert not peer.hears(10, 5, finished=True, sent_at=NOW)
    peer.now += MINUTE_S
    assert not peer.hears(12, 6, finished=False)
    assert not peer.hears(10, 5, finished=True, sent_at=NOW)
    peer.now += MINUTE_S
    assert not peer.hears(13, 5, finished=True), "a lower step than the newest"
    assert peer.hears(13, 7, finished=True)
    assert peer.hears(12, 6, finished=False, sent_at=NOW + 2 * MINUTE_S), "an older head changes nothing"


def test_a_run_that_ends_before_its_first_update_has_ended() -> None:
    assert Listener().hears(0, 0, finished=True)


def test_order_of_heads_does_not_matter() -> None:
    heads = [(1, True, 0.0), (1, False, 0.01), (2, False, 0.02), (2, True, 0.02)]
    for order in itertools.permutations(heads):
        peer = Listener()
        over = [peer.hears(height, 1, finished=finished, sent_at=NOW + after) for height, finished, after in order]
        assert over[-1], order


def test_final_head_minutes_older_than_another_is_a_replay() -> None:
    peer = Listener()
    peer.hears(5, 5, finished=False)
    assert not peer.hears(6, 6, finished=True, sent_at=NOW - 10 * MINUTE_S)
    peer.now += 60 * MINUTE_S
    assert not peer.run_end.is_over(peer.now)


def test_later_policy_contradicts_a_final_head() -> None:
    peer = Listener(policy=5)
    assert peer.hears(5, 5, finished=True)
    peer.run_end.on_policy(5)
    assert peer.run_end.is_over(peer.now)
    peer.run_end.on_policy(6)
    assert not peer.run_end.is_over(peer.now)
    assert not peer.hears(5, 5, finished=True)
    peer.now += 1
    assert peer.hears(8, 6, finished=True)


def test_newcomer_waits_before_it_leaves_a_finished_run() -> None:
    for sent_at in (NOW, NOW - 3_600, NOW - 6 * 86_400):
        peer = Listener(policy=None)
        assert not peer.hears(9, 9, finished=True, sent_at=sent_at)
        peer.now += MINUTE_S
        assert peer.run_end.is_over(peer.now), "nobody contradicted"


def test_newcomer_ignores_a_replayed_final_head_of_a_live_run() -> None:
    by_policy, by_head = Listener(policy=None), Listener(policy=None)
    for peer in (by_policy, by_head):
        peer.hears(9, 9, finished=True, sent_at=NOW - 3_600)
        peer.now += 2
    by_policy.run_end.on_policy(11)
    by_head.hears(12, 11, finished=False)
    for peer in (by_policy, by_head):
        for _ in range(10):
            peer.now += MINUTE_S
            assert not peer.hears(9, 9, finished=True, sent_at=NOW - 3_600)


def test_repetition_does_not_change_the_waiting_time() -> None:
    peer = Listener()
    waited_s = 0
    while not peer.hears(9, 9, finished=True, sent_at=NOW - 3_600):
        peer.now += 1
        waited_s += 1
        assert waited_s < 60
    assert waited_s > 10
