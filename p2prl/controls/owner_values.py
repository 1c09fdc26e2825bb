"""Values of limits as owners write them: sizes, rates, temperatures, durations, shares, weekly hours. Pure functions.

Each `read_…` raises `ValueError` with the expected form; the caller names the limit. `off` is the absence of a limit.
Every figure has its unit, but for a share: a bare 5 may be minutes or seconds, and megabits or megabytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OFF = "off"

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

DAY_MINUTES = 24 * 60

WEEK_MINUTES = 7 * DAY_MINUTES

MOST_HOURS_ENTRIES = 32
"""Parts of a schedule: four a day and some; each costs a comparison every second."""

MOST_NAMES = 16
"""Programs that a worker yields to by name; each is compared with every process, every second."""

MOST_NAME_CHARACTERS = 64

MOST_DURATION_S = 366 * 86_400.0
"""A pause of a year: more is a typing error."""

LEAST_SHARE = 0.05
"""Of the time: a worker that computes less keeps its weights in memory for next to nothing."""

COOLEST_C, HOTTEST_C = 30.0, 110.0
"""A card at rest in a warm room, and above what any card lets itself reach."""

_MOST = 1e6
"""A petabyte, a megawatt, a terabit: more is a typing error."""

_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}

_NUMBER = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([A-Za-z°%]*)")

_PRICE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*([^\W\d_]{0,8}|[$€£¥₹])")

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")


def read_amount(text: str, *units: str) -> float:
    """A positive number in the first of `units`; 0 for `off`. All of `units` mean the same."""
    if _is_off(text):
        return 0.0
    match = _NUMBER.fullmatch(text.strip())
    legal = {unit.casefold() for unit in units}
    if match is None or match[2].casefold() not in legal or not 0.0 < float(match[1]) <= _MOST:
        raise ValueError(f"a number above 0 in {units[0]}, as 20{units[0]}, or off")
    return float(match[1])


def read_temperature_c(text: str) -> float:
    """Degrees Celsius; 0 for `off`. Fahrenheit, or a digit too many, would never act; below a room's, nothing works."""
    expected = f"degrees Celsius from {COOLEST_C:g}C to {HOTTEST_C:g}C, or off"
    try:
        found = read_amount(text, "C", "°C")
    except ValueError:
        raise ValueError(expected) from None
    if found and not COOLEST_C <= found <= HOTTEST_C:
        raise ValueError(expected)
    return found


def read_size_gb(text: str) -> float:
    """Gigabytes (10⁹ bytes); `MB`, `TB` and the binary `MiB`, `GiB`, `TiB` are converted; 0 for `off`."""
    factors = {"gb": 1.0, "mb": 1e-3, "tb": 1e3, "mib": 2**20 / 1e9, "gib": 2**30 / 1e9, "tib": 2**40 / 1e9}
    if _is_off(text):
        return 0.0
    match = _NUMBER.fullmatch(text.strip())
    if match is not None and match[2].casefold() in factors:
        size = float(match[1]) * factors[match[2].casefold()]
        if 0.0 < size <= _MOST:
            return size
    raise ValueError("a size, as 8GB or 500MiB, or off")


def read_duration_s(text: str) -> float:
    """Seconds of a duration as `90s`, `10m`, `2h`, `1h30m`, `1d`; 0 for `off`."""
    if _is_off(text):
        return 0.0
    parts = re.findall(r"(\d{1,9}(?:\.\d{1,6})?)(s|min|m|h|d)", text.strip())
    total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text.strip() or not 0.0 < total <= MOST_DURATION_S:
        raise ValueError("a duration, as 10m, 2h or 1h30m, of at most a year")
    return total


def read_choice(text: str, choices: tuple[str, ...]) -> str:
    """One of the choices."""
    if text.strip().casefold() not in choices:
        raise ValueError(" or ".join(choices))
    return text.strip().casefold()


@dataclass(frozen=True, slots=True)
class YieldRule:
    """Programs that a worker gives way to."""

    kind: str = ""
    """`games`; `programs`, which takes in games; or empty for neither."""
    names: tuple[str, ...] = ()
    """Names of programs besides, wherever they compute."""


_PROGRAM = "program:"


def read_yield(text: str) -> YieldRule:
    """What to give way to: `games`, `programs`, `program:blender,obs`, or `games,program:blender`; nothing for `off`.

    Names are those of processes, as `ps -e` shows them: whole, in any case.
    """
    expected = f"games, programs, {_PROGRAM}NAME,…, both as games,{_PROGRAM}NAME,…, or off"
    head, named, tail = text.strip().partition(_PROGRAM)
    kind = head.strip().casefold()
    if named and kind:
        kind, comma, rest = kind.partition(",")
        if not comma or rest:
            raise ValueError(expected)
    names = tuple(name.strip() for name in tail.split(",")) if named else ()
    if kind.strip() not in (("games", "programs", "") if named else ("games", "programs", OFF)):
        raise ValueError(expected)
    if len(names) > MOST_NAMES or any(not _is_name(name) for name in names):
        raise ValueError(f"{expected}; at most {MOST_NAMES} names of programs, without folders")
    return YieldRule("" if kind == OFF else kind.strip(), names)


def _is_name(text: str) -> bool:
    return bool(text) and len(text) <= MOST_NAME_CHARACTERS and text.isprintable() and "/" not in text


@dataclass(frozen=True, slots=True)
class Price:
    """What a kWh costs."""

    amount: float = 0.0
    """0 where none is known."""
    currency: str = ""
    """As its owner wrote it; may be empty."""


def read_price(text: str) -> Price:
    """A price of a kWh, as `0.30`, `0.30EUR` or `30 cents`; none for `off`."""
    if _is_off(text):
        return Price()
    match = _PRICE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ValueError("what a kWh costs, as 0.30 or 0.30EUR, or off")
    return Price(float(match[1]), match[2])


def read_battery(text: str) -> float:
    """Least charge in percent at which work goes on without mains: 101 for `never`, 0 for `always`, or `50%`."""
    word = text.strip().casefold()
    if word in ("never", "always"):
        return 101.0 if word == "never" else 0.0
    match = _NUMBER.fullmatch(word)
    if match is None or match[2] != "%" or not 0.0 < float(match[1]) <= 100.0:
        raise ValueError("never, always, or the least charge, as 50%")
    return float(match[1])


def read_share(text: str) -> float:
    """A share of the whole: `50%` or `0.5`; 1 for `off`."""
    if _is_off(text):
        return 1.0
    match = _NUMBER.fullmatch(text.strip())
    share = 0.0 if match is None or match[2] not in ("", "%") else float(match[1]) / (100.0 if match[2] else 1.0)
    if not LEAST_SHARE <= share <= 1.0:
        raise ValueError(f"a share from {LEAST_SHARE:.0%} to 100%, as 50%, or off")
    return share


@dataclass(frozen=True, slots=True)
class Hours:
    """A stretch of every week."""

    start: int
    """Minute of the week, from Monday 0:00 local time."""
    minutes: int

    def covers(self, minute: int) -> bool:
        """Whether this minute of the week is inside."""
        return (minute - self.start) % WEEK_MINUTES < self.minutes


def read_schedule(text: str) -> tuple[Hours, ...]:
    """Hours to work in, as `22:00-07:00, Sat-Sun` or `Mon-Fri 18:00-23:00`; none for `off`, which is always.

    Hours that end before they start go over midnight, and belong to the day they start on.
    """
    if _is_off(text):
        return ()
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MOST_HOURS_ENTRIES:
        raise ValueError(f"at most {MOST_HOURS_ENTRIES} parts")
    return tuple(hours for part in parts for hours in _read_part(part))


def is_scheduled(schedule: tuple[Hours, ...], minute: int) -> bool:
    """Whether work is allowed in this minute of the week."""
    return not schedule or any(hours.covers(minute) for hours in schedule)


def minutes_until(schedule: tuple[Hours, ...], minute: int) -> int:
    """Minutes until the next hours of the schedule begin; 0 inside."""
    if is_scheduled(schedule, minute):
        return 0
    return min((hours.start - minute) % WEEK_MINUTES for hours in schedule)


def _read_part(part: str) -> list[Hours]:
    expected = "hours, as 22:00-07:00, or days with hours, as Sat-Sun or Mon-Fri 18:00-23:00, with commas between"
    words = part.split()
    days, start, minutes = range(7), 0, DAY_MINUTES
    if not words or len(words) > 2:
        raise ValueError(expected)
    if words[0][0].isalpha():
        days = _read_days(words.pop(0), expected)
    if words:
        start, end = _read_clocks(words[0], expected)
        minutes = (end - start) % DAY_MINUTES or DAY_MINUTES
    return [Hours(day * DAY_MINUTES + start, minutes) for day in days]


def _read_days(word: str, expected: str) -> range:
    names = [name.casefold() for name in DAYS]
    ends = word.casefold().split("-")
    if len(ends) > 2 or any(end not in names for end in ends):
        raise ValueError(expected)
    first, last = names.index(ends[0]), names.index(ends[-1])
    if last < first:
        raise ValueError(f"days in order, as Mon-Fri; write {DAYS[first]}-Sun, Mon-{DAYS[last]} for both ends")
    return range(first, last + 1)


def _read_clocks(word: str, expected: str) -> tuple[int, int]:
    matches = [_CLOCK.fullmatch(end) for end in word.split("-")]
    if len(matches) != 2 or matches[0] is None or matches[1] is None:
        raise ValueError(expected)
    minutes = [int(match[1]) * 60 + int(match[2]) for match in matches if match is not None]
    if max(minutes) > DAY_MINUTES or any(int(match[2]) > 59 for match in matches if match is not None):
        raise ValueError(expected)
    return minutes[0] % DAY_MINUTES, minutes[1] % DAY_MINUTES


def _is_off(text: str) -> bool:
    return text.strip().casefold() == OFF
