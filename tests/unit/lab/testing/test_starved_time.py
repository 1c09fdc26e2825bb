"""Limits on waiting scale with the processor time that the awaited processes get."""

from __future__ import annotations

import os
import sys

import pytest

from p2prl_lab.testing.starved_time import LEAST_SHARE, StarvedTime, Tasks, granted_share, threads_of
from p2prl_lab.testing.swarm_processes import PATIENCE, wait_until

SECOND = 1_000_000_000


def test_a_second_of_processes_that_get_a_quarter_of_what_they_ask_for_counts_a_quarter() -> None:
    """Two threads that ran for a second and waited for three, together, and one that did nothing."""
    before = {"a": (5 * SECOND, 0), "idle": (SECOND, SECOND)}
    after = {"a": (5 * SECOND + SECOND // 2, 2 * SECOND), "new": (SECOND // 2, SECOND), "idle": (SECOND, SECOND)}
    assert granted_share(before, after, 4.0) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("ran", "waited", "share"),
    [(0, 0, 1.0), (SECOND, 0, 1.0), (0, 4 * SECOND, LEAST_SHARE), (SECOND // 100, SECOND // 100, 1.0)],
    ids=["stuck", "alone", "starved", "idle"],
)
def test_processes_that_ask_for_nothing_have_no_excuse(ran: int, waited: int, share: float) -> None:
    """A swarm that hangs asks for no processor, and is given up in the time that was set."""
    assert granted_share({"a": (0, 0)}, {"a": (ran, waited)}, 4.0) == pytest.approx(share)


def test_a_wait_lasts_longer_while_the_processes_are_starved() -> None:
    """A limit of 10 s, at a tenth of the processor time: it is reached after 100 s."""
    moment = 0.0

    def now() -> float:
        return moment

    def tasks() -> Tasks:
        return {"a": (int(0.1 * moment * SECOND), int(0.9 * moment * SECOND))}

    def later() -> bool:
        nonlocal moment
        moment += 2.0
        return moment >= wanted

    wanted = 96.0
    assert wait_until(later, seconds=10 / PATIENCE, what="it", clock=StarvedTime(tasks, now))
    moment, wanted = 0.0, 130.0
    with pytest.raises(AssertionError, match="it: not within 10 s"):
        wait_until(later, seconds=10 / PATIENCE, what="it", clock=StarvedTime(tasks, now))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone counts the waits of threads")
def test_linux_counts_the_threads_of_this_process() -> None:
    """The main thread has run; a process that has gone has no threads."""
    assert threads_of([os.getpid()])[str(os.getpid())][0] > 0
    assert threads_of([0]) == {}
