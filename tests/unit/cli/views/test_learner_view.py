"""The learner's line and panel."""

from __future__ import annotations

import io

from rich.console import Console

from p2prl.cli.views.learner_view import update_line, update_panel

METRICS = {
    "step": 1_012,
    "version": 6,
    "reward": 0.5,
    "loss": 0.1,
    "staleness_p50": 3,
    "staleness_max": 5,
    "groups": 16,
    "peers": 4,
    "seconds": 97.0,
}


def panel(*, planned: int, first: bool, **more: float) -> str:
    output = io.StringIO()
    Console(file=output, width=80).print(update_panel("chain", METRICS | more, planned=planned, first=first))
    return output.getvalue()


def test_planned_updates_are_shown() -> None:
    assert "step 1,012/2,000 " in update_line("chain", METRICS, planned=2_000, first=False)
    assert "update 1,012 of 2,000   policy v6" in panel(planned=2_000, first=False)


def test_no_planned_updates_are_shown_without_an_end() -> None:
    assert "step 1,012 " in update_line("chain", METRICS, planned=0, first=False)
    assert "update 1,012, no end set" in panel(planned=0, first=False)


def test_the_first_update_shows_no_pace() -> None:
    assert "from 4 volunteers" in update_line("chain", METRICS, planned=0, first=True)
    assert "s/update" not in update_line("chain", METRICS, planned=0, first=True)
    assert "97.00 s/update" in update_line("chain", METRICS, planned=0, first=False)
    assert "an update" not in panel(planned=0, first=True)
    assert "Ctrl-C" in panel(planned=0, first=True)


def test_busy_share_and_the_largest_reason_for_idling_are_shown() -> None:
    assert "busy" not in panel(planned=0, first=False)
    shares = {"training/busy": 0.72, "training/waiting_groups": 0.06, "training/waiting_replay": 0.2}
    assert "72% busy, 20% waiting for replay" in panel(planned=0, first=False, **shares)
    full = {"training/busy": 0.996, "training/waiting_groups": 0.004}
    shown = panel(planned=0, first=False, **full)
    assert "100% busy" in shown
    assert "waiting" not in shown
