"""Times and durations as text."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"

_LAST_MS = 253_402_300_799_000
"""Last millisecond of the year 9999, the latest in RFC 3339; a verdict may carry a later date."""


def time_text(ms: float) -> str | None:
    """Milliseconds since the epoch as RFC 3339 in UTC, to the second; None outside the years 1970 to 9999."""
    if not 0 <= ms <= _LAST_MS:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).strftime(_FORMAT)


def time_of_text(text: str) -> int:
    """Milliseconds since the epoch of what `time_text` gave. Raises `ValueError` for any other text."""
    return int(datetime.strptime(text, _FORMAT).replace(tzinfo=UTC).timestamp()) * 1000


def moment(time: str | None) -> str:
    """What `time_text` gave, for people."""
    return "never" if time is None else time.replace("T", " ").replace("Z", " UTC")


def age_text(seconds: float) -> str:
    """A duration in its largest unit, rounded: `2 h`, `45 s`."""
    for unit_s, name in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def duration_text(seconds: float) -> str:
    """A duration in its two largest units, as owners write it: `2h`, `1h30m`, `45s`."""
    left, parts = max(0, math.ceil(seconds)), []
    for unit, size in (("d", _DAY_S), ("h", _HOUR_S), ("m", _MINUTE_S), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return "".join(parts[:2]) or "0s"
