"""The forecast of a running learner against the queue it forecasts, and what it says when it was wrong."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from p2prl.learner.timing.live_forecast import UPDATES, Forecaster

GROUPS = 16
UPDATE_S = 10.0


class Queue:
    """A learner with updates of ten seconds and sixteen groups, and volunteers that deliver four groups at once."""

    def __init__(self, paces: dict[bytes, float], *, seed: int = 0) -> None:
        self.forecaster = Forecaster(groups_per_update=GROUPS)
        self.paces = paces
        """Mean seconds from one burst of four groups to the next; changed, or taken away, while it runs."""
        self.rng = random.Random(seed)
        self.now = self.done_at = 0.0
        self.ready = 0
        self.sentences: list[str] = []
        self._next = [(self.rng.random() * pace, peer) for peer, pace in paces.items()]
        heapq.heapify(self._next)

    def join(self, peer: bytes, pace: float) -> None:
        self.paces[peer] = pace
        heapq.heappush(self._next, (self.now + self.rng.random() * pace, peer))

    def update(self) -> float:
        """Run one update; the share of its time at work."""
        began = self.now
        self._deliver_until(lambda: self.ready >= GROUPS)
        self.ready -= GROUPS
        ends = self.now + UPDATE_S
        self._deliver_until(lambda: self._next[0][0] > ends)
        self.now = ends
        share = UPDATE_S / (self.now - began)
        if sentence := self.forecaster.updated(self.now, at_work=share, ready=self.ready):
            self.sentences.append(sentence)
        return share

    def _deliver_until(self, enough: Callable[[], bool]) -> None:
        while not enough():
            at, peer = heapq.heappop(self._next)
            if peer not in self.paces:
                continue
            self.now = max(self.now, at)
            for _ in range(4):
                self.forecaster.delivered(peer, self.now)
            self.ready += 4
            heapq.heappush(self._next, (at + self.paces[peer] * self.rng.uniform(0.7, 1.3), peer))

    def realized(self, updates: int) -> float:
        began = self.now
        for _ in range(updates):
            self.update()
        return updates * UPDATE_S / (self.now - began)


def swarm(volunteers: int, pace: float) -> dict[bytes, float]:
    return {bytes([number]): pace for number in range(volunteers)}


@pytest.mark.parametrize("volunteers", [4, 6, 8, 10, 16, 24])
@pytest.mark.parametrize("seed", range(4))
def test_a_steady_swarm_is_foretold_within_an_eighth(volunteers: int, seed: int) -> None:
    queue = Queue(swarm(volunteers, 30.0), seed=seed)
    queue.realized(2 * UPDATES)
    foretold = queue.forecaster.figures["plan/predicted_utilisation"]
    came = queue.realized(UPDATES)
    assert foretold == pytest.approx(min(1.0, volunteers * 4 / 30.0 * UPDATE_S / GROUPS), abs=0.125)
    assert foretold == pytest.approx(came, abs=0.125)
    assert queue.forecaster.figures["plan/realised"] == pytest.approx(came)


def test_eight_of_ten_intervals_hold_what_comes() -> None:
    held = 0
    for seed in range(100):
        queue = Queue(swarm(7, 30.0), seed=seed)
        queue.realized(2 * UPDATES)
        figures = queue.forecaster.figures
        held += figures["plan/low"] <= queue.realized(UPDATES) <= figures["plan/high"]
    assert 70 <= held <= 100


def test_who_has_left_is_not_counted_on() -> None:
    queue = Queue(swarm(10, 30.0), seed=1)
    queue.realized(2 * UPDATES)
    before = queue.forecaster.figures
    for number in range(5):
        del queue.paces[bytes([number])]
    queue.realized(8)
    after = queue.forecaster.figures
    assert (before["plan/volunteers"], after["plan/volunteers"]) == (10, 5)
    assert before["plan/predicted_utilisation"] > 0.7
    assert after["plan/predicted_utilisation"] == pytest.approx(queue.realized(UPDATES), abs=0.1)


def test_who_has_come_is_counted_on_at_its_own_pace() -> None:
    queue = Queue(swarm(4, 30.0), seed=2)
    queue.realized(2 * UPDATES)
    for number in range(4, 8):
        queue.join(bytes([number]), 30.0)
    queue.realized(6)
    assert queue.forecaster.figures["plan/volunteers"] == 8
    assert queue.forecaster.figures["plan/predicted_utilisation"] == pytest.approx(queue.realized(UPDATES), abs=0.15)


def test_groups_that_are_ready_are_in_the_forecast() -> None:
    with_stock, without = (Forecaster(groups_per_update=GROUPS) for _ in range(2))
    for forecaster, ready in ((with_stock, GROUPS * UPDATES // 2), (without, 0)):
        for update in range(UPDATES + 1):
            for place in range(8):
                forecaster.delivered(b"a", 20.0 * update + 2.0 * place)
            forecaster.updated(20.0 * update + 19.0, at_work=0.5, ready=ready)
    assert without.figures["plan/predicted_utilisation"] == pytest.approx(0.25, abs=0.01)
    assert with_stock.figures["plan/predicted_utilisation"] == pytest.approx(0.5, abs=0.02)


def test_the_error_is_of_the_forecast_that_was_made_before_what_came() -> None:
    queue = Queue(swarm(10, 30.0), seed=3)
    queue.realized(UPDATES + 1)
    foretold = queue.forecaster.figures["plan/predicted_utilisation"]
    assert "plan/error" not in queue.forecaster.figures
    came = queue.realized(UPDATES)
    assert queue.forecaster.figures["plan/error"] == pytest.approx(foretold - came, abs=1e-9)


def test_a_swarm_that_shrinks_again_and_again_is_told_once() -> None:
    queue = Queue(swarm(11, 30.0), seed=4)
    queue.realized(UPDATES + 1)
    assert queue.sentences == []
    for left in (5, 2):
        queue.realized(2)
        for peer in list(queue.paces)[left:]:
            del queue.paces[peer]
        queue.realized(UPDATES - 2)
    queue.realized(3 * UPDATES)
    assert len(queue.sentences) == 1
    assert "was foreseen from" in queue.sentences[0]


def test_nothing_is_foretold_from_too_little() -> None:
    forecaster = Forecaster(groups_per_update=GROUPS)
    for update in range(UPDATES + 1):
        assert forecaster.figures == {}
        forecaster.updated(10.0 * update, at_work=1.0, ready=0)
    assert forecaster.figures == {"plan/realised": pytest.approx(1.0)}


@pytest.mark.parametrize("groups", [16, 128, 512, 2048])
def test_batches_of_any_size_are_foretold_alike(groups: int) -> None:
    forecaster = Forecaster(groups_per_update=groups)
    for update in range(UPDATES + 1):
        for place in range(groups):
            forecaster.delivered(bytes([place % 8]), 20.0 * update + 20.0 * place / groups)
        forecaster.updated(20.0 * (update + 1), at_work=0.5, ready=0)
    assert forecaster.figures["plan/predicted_utilisation"] == pytest.approx(0.5, abs=0.01)
