"""Ctrl-C: the first finishes, the second stops now, the third ends the process. A closed terminal stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from p2prl.cli.interrupts import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_three_signals_in_three_steps(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []
    before = signal.getsignal(number)
    interrupts = Interrupts(lambda: calls.append("finish"), lambda: calls.append("stop now"), finishing="Finishing.")
    with interrupts.handled():
        signal.raise_signal(number)
        assert calls == ["finish"]
        signal.raise_signal(number)
        assert calls == ["finish", "stop now"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert interrupts.count == 3
    assert signal.getsignal(number) is before
    assert capsys.readouterr().err.count("Finishing.") == 1


_LENDER = """
import os, signal, sys, threading
signal.signal(signal.SIGHUP, signal.SIG_DFL)    # the tests may run under nohup
terminal = os.open(sys.argv[1], os.O_RDWR)      # the first terminal of a session controls it
for stream in (0, 1, 2):
    os.dup2(terminal, stream)
from p2prl.cli.interrupts import Interrupts
from p2prl.cli.views.console import say
stopped = threading.Event()
def stop():
    say("stopping")                             # fails where the terminal is still written to
    stopped.set()
with Interrupts(stop, stop, finishing="").handled() as interrupts:
    os.write(1, b"ready")
    stopped.wait()
    say("stopped")
with open(sys.argv[2], "w") as file:
    file.write(str(interrupts.count))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal that hangs up")
def test_a_closed_terminal_stops_the_worker_in_order(tmp_path: Path) -> None:
    """The window is closed: what is being stored is stored, and the network is left as it should be."""
    ours, theirs = os.openpty()
    lender = [sys.executable, "-c", _LENDER, os.ttyname(theirs), str(tmp_path / "ended")]
    with subprocess.Popen(lender, start_new_session=True) as process:
        assert b"ready" in os.read(ours, 5)
        os.close(theirs)
        os.close(ours)
        assert process.wait(60) == 0
    assert (tmp_path / "ended").read_text() == "2"
