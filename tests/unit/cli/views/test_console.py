"""Messages beside a live panel: each part of the panel stands on the terminal once, whatever was said in between."""

from __future__ import annotations

import io
import re
import sys
import threading

import pytest
from rich.console import Console
from rich.text import Text

from p2prl.cli.views import console as screen

COLUMNS = 40


def terminal_lines(output: str) -> list[str]:
    """What a terminal of 40 columns shows after this output."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|[^\x1b]", output.replace("\r\n", "\n")):
        if part == "\n":
            row, column = row + 1, 0
        elif part == "\r":
            column = 0
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1] or 1)
        elif part == "\x1b[2K" and row < len(lines):
            lines[row] = ""
        elif not part.startswith("\x1b"):
            if column == COLUMNS:
                row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def test_a_message_leaves_nothing_of_the_panel_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=True, force_interactive=True, width=COLUMNS, height=30)
    monkeypatch.setattr(screen, "console", terminal)
    panel = Text("header of the panel\nstop     Ctrl-C ends after the current groups, twice at once")
    link = "p2prl://" + "x" * 60
    with screen.LiveView().shown() as view:
        view.update(lambda: panel, str)
        screen.say("Finishing the current slots; again stops at once, and keeps them.")
        screen.say(link, unwrapped=True)
    assert terminal_lines(output.getvalue()) == [
        "Finishing the current slots; again stops",
        "  at once, and keeps them.",
        link[:COLUMNS],
        link[COLUMNS:],
        "header of the panel",
        "stop     Ctrl-C ends after the current",
        "groups, twice at once",
    ]


def test_a_line_on_standard_error_leaves_nothing_of_the_panel_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As lines of the network process's log, which a thread prints."""
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=True, force_interactive=True, width=COLUMNS, height=30)
    monkeypatch.setattr(screen, "console", terminal)
    with screen.LiveView().shown() as view:
        view.update(lambda: Text("header of the panel\nlast of it"), str)
        thread = threading.Thread(target=lambda: sys.stderr.write("p2prl.net: no space left on device\n"))
        thread.start()
        thread.join()
    assert terminal_lines(output.getvalue()) == [
        "p2prl.net: no space left on device",
        "header of the panel",
        "last of it",
    ]


def test_the_newest_state_is_drawn_however_soon_it_follows_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that goes to rest reports once and then sleeps: nothing later would draw it."""
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=True, force_interactive=True, width=COLUMNS, height=30)
    monkeypatch.setattr(screen, "console", terminal)
    with screen.LiveView().shown() as view:
        view.update(lambda: Text("sampling"), str)
        view.update(lambda: Text("resting"), str)
        screen.say("Resting: gives way to Chess.")
    assert terminal_lines(output.getvalue()) == ["Resting: gives way to Chess.", "resting"]
