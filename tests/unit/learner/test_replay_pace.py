"""The pace of replays is that of the newest batches."""

from __future__ import annotations

import pytest

from p2prl.learner.intake.replay_pace import ReplayPace


def test_groups_over_seconds_of_the_newest_batches() -> None:
    pace = ReplayPace()
    assert pace.figures == {}
    pace.replayed(3, 0.0)
    assert pace.figures == {}, "on virtual time a replay takes none"
    pace.replayed(5, 4.0)
    assert pace.figures == {"replay/groups_per_s": pytest.approx(2.0)}
    for _ in range(63):
        pace.replayed(1, 10.0)
    assert pace.figures["replay/groups_per_s"] == pytest.approx((5 + 63) / 634.0), "the first of 65 is forgotten"
    pace.replayed(1, 10.0)
    assert pace.figures["replay/groups_per_s"] == pytest.approx(0.1)
