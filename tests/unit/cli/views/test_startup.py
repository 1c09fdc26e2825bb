"""The start of a role: each phase by name from the first second."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from p2prl.cli.views import console as screen
from p2prl.cli.views.console import StartupPhases


def drawn(phases: StartupPhases) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=60).print(phases)
    return [" ".join(line.split()) for line in output.getvalue().splitlines()]


def test_finished_phases_keep_their_seconds() -> None:
    now = [0.0]
    phases = StartupPhases(lambda: now[0])
    phases.begin("importing torch")
    now[0] = 9.0
    phases.begin("finding the run")
    now[0] = 9.2
    phases.begin("downloading the weights", "2 of 7 chunks")  # the phase before was too short for a line
    now[0] = 12.2
    first, second = drawn(phases)
    assert first == "✓ importing torch 9 s"
    assert second.endswith("downloading the weights: 2 of 7 chunks 3 s")


def test_detail_changes_within_a_phase() -> None:
    phases = StartupPhases(lambda: 0.0)
    assert phases.begin("downloading", "1 of 7")
    assert not phases.begin("downloading", "2 of 7")
    assert phases.line() == "downloading: 2 of 7"


def test_without_a_terminal_each_phase_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(screen, "say", said.append)
    view = screen.LiveView()
    with view.shown():
        view.phase("importing torch")
        view.phase("finding the run")
        view.phase("finding the run")
        view.update(lambda: "", lambda: "soon")  # the last line was a moment ago
    assert said == ["importing torch …", "finding the run …"]
    quiet = screen.LiveView(quiet=True)
    with quiet.shown():
        quiet.phase("importing torch")
    assert len(said) == 2


def test_a_link_stays_on_one_line_above_the_live_display(monkeypatch: pytest.MonkeyPatch) -> None:
    output, link = io.StringIO(), "p2prl://" + "x" * 200
    monkeypatch.setattr(screen, "console", Console(file=output, force_terminal=True, width=60, highlight=False))
    view = screen.LiveView()
    with view.shown():
        view.phase("waiting for groups")
        screen.say(link, unwrapped=True)
    assert link in output.getvalue()
