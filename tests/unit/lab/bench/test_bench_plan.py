"""Forecasts against simulated swarms: one small fleet through both, and the table."""

from __future__ import annotations

from p2prl_lab.bench.plan.benchmark import FLEETS, PlanRow, SimulatedFleet, as_markdown, plan_row


def test_a_fleet_is_predicted_and_realized() -> None:
    """Two volunteers bring .1 to .4 groups a second, of .8 that the learner could use."""
    fleet = SimulatedFleet(name="two", volunteers=2, sample_s=20.0, step_s=20.0, staleness=128, publish_every=2)
    row = plan_row(fleet, updates=8, seed=1)
    assert (row.fleet, row.saturated, row.updates) == ("two", False, 8)
    assert 0.1 < row.low < row.predicted < row.high < 0.5
    assert abs(row.realised - row.predicted) < 0.1


def test_the_fleets_are_of_both_kinds_and_the_table_has_a_line_for_each() -> None:
    rows = [
        PlanRow(fleet=each.name, saturated=True, predicted=1.0, low=0.9, high=1.0, realised=1.0, updates=8)
        for each in FLEETS
    ]
    assert len({row.fleet for row in rows}) == len(FLEETS) >= 4
    table = as_markdown(rows).splitlines()
    assert len(table) == 2 + len(FLEETS)
    assert {line.count("|") for line in table} == {8}
