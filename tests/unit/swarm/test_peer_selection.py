"""Upload order of peers, and the target time it is based on."""

from __future__ import annotations

import math

import pytest

from p2prl.swarm.relay.peer_selection import Pace, Rates, observed_pace, rank

MB = 1e6
HOME = Rates(2 * MB, 10 * MB)


def test_the_target_is_a_tenth_beyond_the_time_that_progress_promises() -> None:
    # Two neighbors lack 100 MB and gain 4 MB/s after 10 s: they finish at 35 s.
    pace = observed_pace([int(60 * MB), int(40 * MB)], 4 * MB, 10.0, least_s=0.0)
    assert pace.mean_upload_bytes_s == 2 * MB
    assert pace.target_s == pytest.approx(1.1 * 35)
    # The learner's own uplink may need longer for one copy.
    assert observed_pace([int(60 * MB), int(40 * MB)], 4 * MB, 10.0, least_s=80.0).target_s == pytest.approx(88)


def test_no_peer_is_late_before_progress_is_seen() -> None:
    for pace in (observed_pace([100], 0.0, 5.0, least_s=1.0), observed_pace([], 1.0, 5.0, least_s=1.0)):
        assert math.isinf(pace.target_s)
        assert math.isinf(pace.laxity_s(1000, Rates(), 1e9))
    assert rank(5, 100, Rates(), pace, 1e9) < rank(5, 200, Rates(), pace, 0.0), "then the fewest bytes come first"


def test_of_a_claim_only_a_modest_uplink_counts() -> None:
    assert Rates(1 * MB, 5 * MB).capped() == Rates(1 * MB, 0.0)
    assert Rates(500 * MB).capped() == Rates(5_000 * MB).capped() == Rates(12.5 * MB)


def test_upload_ranks() -> None:
    pace = Pace(2 * MB, 55.0)
    newcomers = [rank(held, int(100 * MB), Rates(up * MB, 0.0), pace, 0.0) for held, up in ((0, 9), (1, 3), (0, 1))]
    # A downlink of 1 MB/s with 60 MB to go needs 60 s of the 55; with 54 it has one second to spare, which is too few.
    late = [rank(40, int(mb * MB), Rates(2 * MB, 1 * MB), pace, 0.0) for mb in (60, 54)]
    # 1.5 mean uplinks carry 3 MB/s: 10 and 20 s, with 45 and 35 to spare.
    others = [rank(40, int(mb * MB), HOME, pace, 0.0) for mb in (30, 60)]
    assert newcomers + late + others == sorted(newcomers + late + others)
    assert [place[0] for place in newcomers + late + others] == [0, 0, 0, 1, 1, 2, 2]


def test_time_makes_peers_late() -> None:
    pace = Pace(2 * MB, 55.0)
    assert rank(40, int(30 * MB), HOME, pace, 40.0)[0] == 2
    assert rank(40, int(30 * MB), HOME, pace, 43.0)[0] == 1
