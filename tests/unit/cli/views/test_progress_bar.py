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


def test_time_left_follows_from_the_pace_of_the_work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    now = [100.0]
    monkeypatch.setattr(bar, "say", said.append)
    monkeypatch.setattr("p2prl.cli.views.progress_bar.time.monotonic", lambda: now[0])
    with bar.progress_bar("making", quiet=False) as tell:
        for second in range(0, 601, 300):
            now[0] = 100.0 + second
            tell("importing", 0.0)
        tell("training", 0.01)  # after ten minutes that were not training
        now[0] += 60.0
        tell("training", 0.1)
        for share in (0.0, 0.5):  # another stage, with a share of its own
            now[0] += 60.0
            tell("writing", share)
    assert [line for line in said if "left" in line] == [
        "making: training 10%, 9 min left",
        "making: writing 50%, 1 min left",
    ]


@pytest.mark.parametrize(
    ("elapsed_s", "share", "text"),
    [
        (29.0, 0.5, ""), (30.0, 0.0, ""), (600.0, 1.0, ""), (30.0, 0.5, ", 1 min left"), (600.0, 0.25, ", 30 min left"),
        (600.0, 0.1, ", 1.5 h left"), (36_000.0, 0.5, ", 10.0 h left"),
    ],
)  # fmt: skip
def test_time_left_is_told_once_there_is_a_pace(elapsed_s: float, share: float, text: str) -> None:
    assert bar.remaining(elapsed_s, share) == text
