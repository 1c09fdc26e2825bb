"""Messages beside a live panel: each part of the panel stands on the terminal once, whatever was said in between."""

from __future__ import annotations

import os
import re
import sys
import threading

import pytest
from rich.text import Text

from p2prl.cli.views.console import LiveView, say

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
        elif part == "\x1b[2K":
            lines[row] = ""
        elif not part.startswith("\x1b"):
            if column == COLUMNS:
                row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def test_a_message_leaves_nothing_of_the_panel_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("LINES", "30")
    ours, theirs = os.openpty()
    panel = Text("header of the panel\nstop     Ctrl-C ends after the current groups, twice at once")
    link = "p2prl://" + "x" * 60
    written: list[bytes] = []
    with open(theirs, "w") as terminal:  # a descriptor
        reader = threading.Thread(target=_read_all, args=(ours, written))
        reader.start()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            with LiveView().shown() as view:
                view.update(lambda: panel, str)
                say("Finishing the current slots; again stops at once, and keeps them.")
                say(link, unwrapped=True)
    reader.join()
    lines = terminal_lines(b"".join(written).decode())
    assert lines == [
        "Finishing the current slots; again stops",
        "  at once, and keeps them.",
        link[:COLUMNS],
        link[COLUMNS:],
        "header of the panel",
        "stop     Ctrl-C ends after the current",
        "groups, twice at once",
    ]


def _read_all(descriptor: int, written: list[bytes]) -> None:
    try:
        while data := os.read(descriptor, 65536):
            written.append(data)
    except OSError:  # the other end was closed
        pass
    os.close(descriptor)
