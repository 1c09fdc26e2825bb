"""The system's clock: it goes on while the machine sleeps, and never steps back."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from p2prl.clock import SystemClock

_SLEEP_S = 28_800

_NO_NAMESPACE = 77

_SLEEPER = f"""
import ctypes, os, sys
from p2prl.clock import SystemClock

def begin_sleep():
    libc, new_time = ctypes.CDLL(None), 0x80
    if libc.unshare(new_time):
        return False
    with open("/proc/self/timens_offsets", "w") as offsets:
        offsets.write("boottime {_SLEEP_S} 0")
    return not libc.setns(os.open("/proc/self/ns/time_for_children", os.O_RDONLY), new_time)

clock = SystemClock()
before = clock.now()
try:
    slept = begin_sleep()
except (OSError, AttributeError):
    slept = False
if not slept:
    sys.exit({_NO_NAMESPACE})
print(clock.now() - before)
"""
"""Enters a time namespace in which the time since boot is hours ahead and the time awake is not: what a process sees
when the machine has slept."""


@pytest.mark.skipif(sys.platform != "linux", reason="time namespaces are Linux's")
def test_the_clock_counts_the_time_that_the_machine_sleeps() -> None:
    done = subprocess.run([sys.executable, "-c", _SLEEPER], capture_output=True, text=True, check=False)
    if done.returncode == _NO_NAMESPACE:
        pytest.skip("this system allows no time namespaces")
    assert done.returncode == 0, done.stderr
    assert _SLEEP_S <= float(done.stdout) < _SLEEP_S + 60


def test_the_clock_starts_at_the_time_of_day_and_goes_on() -> None:
    clock = SystemClock()
    first, wall = clock.now(), time.time()
    assert abs(first - wall) < 1.0
    assert clock.now() >= first
