"""Ctrl-C: the first finishes, the second stops now, the third ends the process."""

from __future__ import annotations

import signal

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
