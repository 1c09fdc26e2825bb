"""Values of limits: every written form, its neighbors that are refused, and weekly hours against a calendar."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from p2prl.controls.owner_values import (
    MOST_NAMES,
    WEEK_MINUTES,
    Price,
    YieldRule,
    is_scheduled,
    minutes_until,
    read_amount,
    read_battery,
    read_duration_s,
    read_price,
    read_schedule,
    read_share,
    read_size_gb,
    read_temperature_c,
    read_yield,
)
from p2prl.time_text import duration_text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("10min", 600), ("2h", 7_200), ("1h30m", 5_400), ("1d", 86_400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert read_duration_s(text) == seconds
    assert read_duration_s(duration_text(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2 h 3", "2y", "0s", "inf", "367d", "2h later"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        read_duration_s(text)


@pytest.mark.parametrize(
    ("text", "gb"), [("8 gb", 8), ("8GB", 8), ("500 MB", 0.5), ("1TB", 1_000), ("1GiB", 1.073741824)]
)
def test_sizes(text: str, gb: float) -> None:
    assert read_size_gb(text) == pytest.approx(gb)


@pytest.mark.parametrize("text", ["", "0", "8", "-1GB", "8 bananas", "1e9GB", "9999999999GB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        read_size_gb(text)


def test_amounts_and_their_units() -> None:
    assert read_amount("200W", "W") == read_amount(" 200 w", "W") == 200
    assert read_amount("off", "W") == 0
    for text in ("200", "200C", "0W", "W", "-3W"):
        with pytest.raises(ValueError, match="in W"):
            read_amount(text, "W")


def test_temperatures_that_would_never_act_or_always_are_refused() -> None:
    """167 is 75 °C in Fahrenheit, and 750 a slip of the finger: neither would ever cool the card."""
    assert [read_temperature_c(text) for text in ("off", "30C", "75°C", " 75 C", "110c")] == [0, 30, 75, 75, 110]
    for text in ("29.9C", "110.1C", "75", "167", "750C", "75F", "0", "-5C", "C", "nanC", ""):
        with pytest.raises(ValueError, match="30C to 110C"):
            read_temperature_c(text)


def test_share() -> None:
    assert [read_share(text) for text in ("off", "50%", "0.5", "5%", "100%", "1")] == [1, 0.5, 0.5, 0.05, 1, 1]
    for text in ("0", "4%", "101%", "1.1", "50", "half", "50W"):
        with pytest.raises(ValueError, match="5% to 100%"):
            read_share(text)


def test_battery() -> None:
    assert [read_battery(text) for text in ("never", "always", "50%")] == [101, 0, 50]
    for text in ("50", "0%", "101%", "sometimes"):
        with pytest.raises(ValueError, match="never"):
            read_battery(text)


def test_a_schedule_against_the_calendar() -> None:
    """Every minute of a week, by the calendar's own weekday and hour."""
    schedule = read_schedule("22:00-07:00, Sat-Sun, Wed 12:30-13:00")
    monday = datetime(2026, 11, 23)
    for minute in range(WEEK_MINUTES):
        when = monday + timedelta(minutes=minute)
        clock = (when.hour, when.minute)
        expected = (
            clock >= (22, 0)
            or clock < (7, 0)
            or when.weekday() >= 5
            or (when.weekday() == 2 and (12, 30) <= clock < (13, 0))
        )
        assert is_scheduled(schedule, minute) == expected, when
        wait = minutes_until(schedule, minute)
        assert (wait == 0) == expected
        assert is_scheduled(schedule, (minute + wait) % WEEK_MINUTES)


def test_hours_over_midnight_belong_to_the_day_they_start_on() -> None:
    schedule = read_schedule("Sun 22:00-07:00")
    assert is_scheduled(schedule, 6 * 60 + 59), "Monday morning"
    assert not is_scheduled(schedule, 7 * 60)
    assert not is_scheduled(schedule, 6 * 1_440 + 6 * 60), "Sunday morning"


@pytest.mark.parametrize(
    "text", ["", "22-7", "25:00-26:00", "22:61-23:00", "Foo", "Fri-Mon", "Sat 1:00", "a b c", "," * 40]
)
def test_no_schedules(text: str) -> None:
    with pytest.raises(ValueError, match=r"hours|days|parts"):
        read_schedule(text)


def test_off_is_always() -> None:
    assert is_scheduled(read_schedule("off"), 0)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("off", YieldRule()),
        ("games", YieldRule("games")),
        (" Programs ", YieldRule("programs")),
        ("program:blender,obs", YieldRule("", ("blender", "obs"))),
        ("program: Blender , obs studio", YieldRule("", ("Blender", "obs studio"))),
        ("games,program:obs", YieldRule("games", ("obs",))),
        ("programs, program:obs", YieldRule("programs", ("obs",))),
        ("program:games", YieldRule("", ("games",))),
    ],
)
def test_what_to_give_way_to(text: str, rule: YieldRule) -> None:
    assert read_yield(text) == rule


@pytest.mark.parametrize(
    "text",
    ["", "blender", "games,programs", "program:", "program:a,,b", "program:/usr/bin/blender", "off,program:a",
     "games program:a", "games,off,program:a", "program:" + "x" * 65, "program:a\tb",
     "program:" + ",".join(map(str, range(MOST_NAMES + 1)))],
)  # fmt: skip
def test_no_rule_to_give_way_by(text: str) -> None:
    with pytest.raises(ValueError, match="program:NAME"):
        read_yield(text)


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("off", Price()),
        ("0.30", Price(0.3)),
        ("0.30EUR", Price(0.3, "EUR")),
        ("30 cents", Price(30.0, "cents")),
        ("0.3 €", Price(0.3, "€")),
        ("5 Kč", Price(5.0, "Kč")),
    ],
)
def test_prices_in_any_currency(text: str, price: Price) -> None:
    assert read_price(text) == price


@pytest.mark.parametrize("text", ["", "0", "-1", "free", "0,30", "1e3", "0.3 EUR/kWh", "EUR 0.3"])
def test_no_prices(text: str) -> None:
    with pytest.raises(ValueError, match="kWh"):
        read_price(text)
