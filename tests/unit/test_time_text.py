"""Times and durations as text."""

from __future__ import annotations

import pytest

from p2prl.time_text import age_text, duration_text, moment, time_text


@pytest.mark.parametrize(
    ("ms", "text", "spoken"),
    [
        (0, "1970-01-01T00:00:00Z", "1970-01-01 00:00:00 UTC"),
        (1_800_000_000_999, "2027-01-15T08:00:00Z", "2027-01-15 08:00:00 UTC"),
        (253_402_300_799_000, "9999-12-31T23:59:59Z", "9999-12-31 23:59:59 UTC"),
        (253_402_300_800_000, None, "never"),
        (-1, None, "never"),
    ],
)
def test_times_are_utc_to_the_second(ms: int, text: str | None, spoken: str) -> None:
    assert time_text(ms) == text
    assert moment(text) == spoken


@pytest.mark.parametrize(
    ("seconds", "age", "duration"),
    [(-3, "0 s", "0s"), (59, "59 s", "59s"), (60, "1 min", "1m"), (5_400, "2 h", "1h30m"), (86_400, "1 d", "1d")],
)
def test_durations(seconds: float, age: str, duration: str) -> None:
    assert age_text(seconds) == age
    assert duration_text(seconds) == duration
