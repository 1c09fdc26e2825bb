"""The live benchmark of the planner: its reading of a run's metrics."""

from __future__ import annotations

from typing import Any

import pytest

from p2prl_lab.plan_live import LiveRow, as_markdown, compared, replaced_after


def lines(updates: int) -> list[dict[str, Any]]:
    """Updates that foresee .01 × their number, and came to what was foreseen 16 before, but for the 40th."""
    found: list[dict[str, Any]] = [{"step": step, "version": step // 2} for step in range(1, updates + 1)]
    for line in found[16:]:
        line["plan/predicted_utilisation"] = line["step"] / 100
    for line in found[32:]:
        line["plan/realised"] = (line["step"] - 16) / 100 + (0.5 if line["step"] == 40 else 0.0)
    return found


def test_a_forecast_is_held_against_what_came_16_updates_later() -> None:
    pairs = compared(lines(60))
    assert [foreseen for foreseen, _ in pairs] == [step / 100 for step in range(20, 45)]
    wrong = [(foreseen, came) for foreseen, came in pairs if abs(foreseen - came) > 1e-9]
    assert [each for pair in wrong for each in pair] == pytest.approx([0.24, 0.74])


def test_forecasts_before_the_20th_update_or_without_a_comparison_are_left_out() -> None:
    assert compared(lines(35)) == []
    assert len(compared(lines(36))) == 1


@pytest.mark.parametrize(
    ("resting", "killed_at", "heads"),
    [
        ([0, 1, 2, 2, 2, 1, 1], 2, 3),
        ([0, 1, 2, 2, 2, 2, 2], 2, None),
        ([2, 2, 1, 1, 2, 2, 2], 3, None),  # called before the death
        ([0, 1, 2, 3, 3, 2, 1], 2, 4),  # more rest after it; then fewer than at the death
        ([0, 1, 2, 2, 1, 1, 1], None, None),
    ],
)
def test_versions_are_counted_from_the_death_to_the_first_call(
    resting: list[int], killed_at: int | None, heads: int | None
) -> None:
    found = [{"version": number, "plan/standby": count} for number, count in enumerate(resting)]
    assert replaced_after(found, killed_at) == heads


def test_nobody_on_standby_is_not_in_the_metrics() -> None:
    found: list[dict[str, Any]] = [{"version": 1, "plan/standby": 1}, {"version": 2}, {"version": 3}]
    assert replaced_after(found, 1) == 1


def test_the_table_says_that_nobody_had_to_be_called() -> None:
    row = LiveRow(
        predicted=0.9, realised=0.8, error=0.125, sampler_cpu_of_all_active=0.6, updates_an_hour_of_all_active=1.0,
        reward_difference=0.01, most_on_standby=3, replaced_after_heads=None,
    )  # fmt: skip
    assert as_markdown(row).splitlines()[2] == "| 0.90 | 0.80 | 12% | 3 | 0.60 | 1.00 | 0.010 | – |"
