"""Upload order of peers, and the target time that the learner's help goes by."""

from __future__ import annotations

import math

import pytest

from p2prl.swarm.relay.grant_order import Pace, Rates, observed_pace, rank

MB = 1e6


def test_the_target_is_a_tenth_beyond_the_time_that_progress_promises() -> None:
    # Two neighbors lack 100 MB and gain 4 MB/s after 10 s: they finish at 35 s.
    pace = observed_pace([int(60 * MB), int(40 * MB)], 4 * MB, 10.0, least_s=0.0)
    assert pace.mean_gain_bytes_s == 2 * MB
    assert pace.target_s == pytest.approx(1.1 * 35)
    # The learner's own uplink may need longer for one copy.
    assert observed_pace([int(60 * MB), int(40 * MB)], 4 * MB, 10.0, least_s=80.0).target_s == pytest.approx(88)


def test_no_peer_is_late_before_progress_is_seen() -> None:
    for pace in (observed_pace([100], 0.0, 5.0, least_s=1.0), observed_pace([], 1.0, 5.0, least_s=1.0)):
        assert math.isinf(pace.target_s)
        assert not pace.is_late(int(1e12), 1e9)


def test_a_peer_is_late_that_misses_the_target_although_it_gains_as_much_as_the_others() -> None:
    pace = Pace(2 * MB, 50.0)
    # 60 MB take 30 s. The target is at 50 s, and 2.5 s before it (a twentieth) is too close.
    assert not pace.is_late(int(60 * MB), 17.4)
    assert pace.is_late(int(60 * MB), 17.6)
    assert pace.is_late(int(61 * MB), 17.4)


def test_who_has_the_fewest_chunks_comes_first_whatever_uplink_it_states() -> None:
    assert rank(3, Rates()) < rank(4, Rates(12.5 * MB)) < rank(5, Rates(1000 * MB))


def test_of_equals_the_larger_uplink_comes_first_as_far_as_it_counts() -> None:
    assert rank(3, Rates(9 * MB)) < rank(3, Rates(1 * MB)) < rank(3, Rates())
    assert rank(3, Rates(12 * MB)) > rank(3, Rates(500 * MB)) == rank(3, Rates(5_000 * MB, 1.0))
