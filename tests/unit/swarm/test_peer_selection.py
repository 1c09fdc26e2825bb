"""Upload order of peers, and the target time it is based on."""

from __future__ import annotations

import math

import pytest

from p2prl.swarm.relay.peer_selection import Pace, Rates, pace_of, rank

MB = 1e6
HOME = Rates(2 * MB, 10 * MB)


def test_target_is_a_tenth_above_the_lower_bound() -> None:
    # Eight uplinks of 2 MB/s without the source: F over the mean uplink, 100 MB / 2 MB/s.
    pace = pace_of(int(100 * MB), [HOME] * 8)
    assert pace.mean_upload_bytes_s == 2 * MB
    assert pace.target_s == pytest.approx(1.1 * 50)
    # With a source of 12.5 MB/s: 8·100 / (12.5 + 16) = 28.07 s.
    assert pace_of(int(100 * MB), [HOME] * 8, source_upload_bytes_s=12.5 * MB).target_s == pytest.approx(
        1.1 * 28.0702, 1e-4
    )
    # A downlink of 1 MB/s needs 100 s; a source of .5 MB/s needs 200.
    slow = [HOME, HOME, Rates(9 * MB, 1 * MB)]
    assert pace_of(int(100 * MB), slow).target_s == pytest.approx(110)
    assert pace_of(int(100 * MB), slow, source_upload_bytes_s=0.5 * MB).target_s == pytest.approx(220)


def test_no_peer_is_late_without_rates() -> None:
    pace = pace_of(1000, [Rates(), Rates(0.0, 5.0)])
    assert math.isinf(pace.target_s)
    assert math.isinf(pace.laxity_s(1000, Rates(), 1e9))
    assert rank(5, 100, Rates(), pace, 1e9) < rank(5, 200, Rates(), pace, 0.0), "then the fewest bytes come first"


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
