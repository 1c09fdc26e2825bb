"""Progress without a terminal."""

from __future__ import annotations

import pytest

from p2prl.cli.views import progress_bar as bar


def test_a_line_for_each_stage_and_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    now = [100.0]
    monkeypatch.setattr(bar, "say", said.append)
    monkeypatch.setattr("p2prl.cli.views.progress_bar.time.monotonic", lambda: now[0])
    with bar.progress_bar("making", quiet=False) as tell:
        for second in range(26):
            now[0] = 100.0 + second
            tell("warm start", second / 100)
        tell("writing", 0.9)
    assert said == ["making: warm start …", "making: warm start 10%", "making: warm start 20%", "making: writing …"]
