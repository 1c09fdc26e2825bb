"""Forecasts against simulated swarms: one small fleet through both, how fleets are drawn, and the table."""

from __future__ import annotations

import math

from p2prl_lab.bench.plan.benchmark import SimulatedFleet, as_markdown, drawn_fleets, plan_row


def test_a_fleet_is_predicted_and_realized() -> None:
    """Two volunteers bring .1 to .4 groups a second, of .4 that the learner could use, a part of the time."""
    fleet = SimulatedFleet(
        name="two", volunteers=2, sample_s=20.0, step_s=10.0, staleness=128, publish_every=2,
        share_of_time=0.8, session_s=400.0,
    )  # fmt: skip
    row = plan_row(fleet, updates=8, seed=1)
    assert (row.fleet, row.saturated, row.updates) == ("two", False, 8)
    assert 0.1 < row.low < row.predicted < row.high < 0.9
    assert abs(row.realised - row.predicted) < 0.2
    table = as_markdown([row]).splitlines()
    assert len(table) == 3
    assert {line.count("|") for line in table} == {9}


def test_drawn_fleets_are_of_all_kinds_and_other_seeds_draw_others() -> None:
    fleets = drawn_fleets(3, 24, updates=40)
    assert fleets == drawn_fleets(3, 24, updates=40) != drawn_fleets(4, 24, updates=40)
    assert all(fleet.volunteers >= 8 for fleet in fleets)
    come_and_go = [fleet for fleet in fleets if fleet.share_of_time < 1.0]
    assert len(come_and_go) == 12
    assert all(math.isfinite(fleet.session_s) == (fleet in come_and_go) for fleet in fleets)
    need = [
        fleet.share_of_time * fleet.volunteers * 2 * fleet.step_s / (4 * fleet.sample_s) for fleet in fleets
    ]  # in two slots each
    assert sum(share < 1.0 for share in need) >= 12
    assert sum(share > 1.0 for share in need) >= 4
