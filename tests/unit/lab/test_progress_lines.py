"""Progress without a screen: in place on a terminal, occasional lines in a file."""

from __future__ import annotations

from io import StringIO

import pytest

from p2prl_lab.progress_lines import PERIOD_S, ProgressLines, say


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_occasional_lines_and_no_control_character() -> None:
    out, times = StringIO(), iter([0.0, 0.0, 1.0, PERIOD_S - 0.1, PERIOD_S, PERIOD_S, 30.0, 30.0])
    progress = ProgressLines(out, now=lambda: next(times))
    for share in ("0%", "1%", "2%", "3%", "3%"):
        progress.show(share)
    progress.line("row 1")
    progress.end()
    assert out.getvalue() == "0%\n3%\nrow 1\n"


def test_a_terminal_shows_progress_in_one_line_and_keeps_rows() -> None:
    out = Terminal()
    progress = ProgressLines(out)
    progress.show("ten percent")
    progress.show("20%")
    progress.line("row 1")
    progress.line("row 2")
    progress.show("30%")
    progress.end()
    progress.end()
    clear = "\r\x1b[K"
    assert out.getvalue() == f"{clear}ten percent{clear}20%{clear}row 1\nrow 2\n{clear}30%\n"


def test_a_message_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    say("a message")
    assert capsys.readouterr() == ("", "a message\n")
