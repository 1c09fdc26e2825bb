"""The terminal's echo of control characters: off beside a live panel, and as it was afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOWS = """
import fcntl, termios
from p2prl.cli.views.console import without_control_echo

def shows() -> bool:
    return bool(termios.tcgetattr(0)[3] & termios.ECHOCTL)

fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # in the foreground of a terminal of its own
seen = [shows()]
with without_control_echo():
    seen.append(shows())
seen.append(shows())
settings = termios.tcgetattr(0)
settings[3] &= ~termios.ECHOCTL
termios.tcsetattr(0, termios.TCSANOW, settings)
with without_control_echo():
    seen.append(shows())
seen.append(shows())
print(seen, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
def test_a_terminal_shows_control_characters_again() -> None:
    ours, theirs = os.openpty()
    result = subprocess.run(
        [sys.executable, "-c", SHOWS], stdin=theirs, capture_output=True, text=True, start_new_session=True, check=False
    )
    os.close(ours)
    os.close(theirs)
    assert result.stdout == "[True, False, True, False, False]\n", result.stderr


def test_what_is_no_terminal_is_left_alone() -> None:
    program = "from p2prl.cli.views.console import without_control_echo\nwith without_control_echo(): print('ran')"
    result = subprocess.run([sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (result.returncode, result.stdout) == (0, b"ran\n")
