"""The learner's line and panel."""

from __future__ import annotations

import io

from rich.console import Console

from p2prl.cli.views.learner_view import forecast_text, update_line, update_panel, waiting_text

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


def panel(*, planned: int, first: bool, **more: float | list[str]) -> str:
    output = io.StringIO()
    Console(file=output, width=120).print(update_panel("chain", METRICS | more, planned=planned, first=first))
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


def test_the_forecast_is_shown_beside_what_came() -> None:
    assert forecast_text(METRICS) == ""
    came = {"plan/realised": 0.714}
    assert forecast_text(came) == "71% of the last 16 updates' time"
    foreseen = came | {"plan/predicted_utilisation": 0.8, "plan/low": 0.7, "plan/high": 0.9}
    assert forecast_text(foreseen) == "71% of the last 16 updates' time, 80% foreseen for the next (70% to 90%)"
    assert "80% foreseen" in panel(planned=0, first=False, **foreseen)
    sure = came | {"plan/predicted_utilisation": 1.0, "plan/low": 1.0, "plan/high": 1.0}
    assert forecast_text(sure) == "71% of the last 16 updates' time, 100% foreseen for the next"


EVALUATED = {
    "evaluation/version": 20.0,
    "evaluation/step": 40.0,
    "evaluation/sums/greedy_pass": 0.5,
    "evaluation/sums/greedy_pass_low": 0.4,
    "evaluation/sums/greedy_pass_high": 0.6,
    "evaluation/sums/pass_at_k": 0.75,
    "evaluation/walk12/greedy_pass": 0.25,
    "evaluation/walk12/greedy_pass_low": 0.2,
    "evaluation/walk12/greedy_pass_high": 0.3,
}


def test_the_newest_evaluation_is_shown_by_task() -> None:
    assert "evaluation" not in panel(planned=0, first=False)
    shown = panel(planned=0, first=False, **EVALUATED)
    assert "sums v20: greedy 0.500 (0.400 to 0.600), pass@k 0.750" in shown
    (other,) = [line for line in shown.splitlines() if "walk12" in line]
    assert other.rstrip().endswith("walk12 v20: greedy 0.250 (0.200 to 0.300)")


def test_what_keeps_a_run_from_learning_is_shown() -> None:
    assert "warning" not in panel(planned=0, first=False, **{"signal/warnings": []})
    names = {"signal/warnings": ["no_reward", "a_later_one"]}
    assert "no completion of the last 64 groups earned any reward" in panel(planned=0, first=False, **names)
    assert "warning: no completion" in update_line("chain", METRICS | names, planned=0, first=False)


def test_waiting_says_what_has_come() -> None:
    assert waiting_text({}, 16).startswith("start volunteers")
    assert waiting_text({"stored": 1}, 16) == "1 group to be replayed"
    assert waiting_text({"stored": 3, "verified": 12}, 16) == "12 of 16 verified for the first update"
    assert waiting_text({"rejected": 4}, 16) == "none verified so far, 4 rejected"
