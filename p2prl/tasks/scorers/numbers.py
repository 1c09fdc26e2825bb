"""Numbers in text as exact fractions, found in time linear in the text.

Accepted, in ASCII digits only: `42`, `-3.50`, `.5`, `+7`, `1,234,567.8`, `3/4`, `1.5e-3`, `1.5 x 10^3`,
`2 \\times 10^{6}`, `10^6`, `\\frac{3}{4}` (also `\\dfrac`, `\\tfrac`), with `$`, `€` or `£` before them or any unit
after them, whose exponents are no numbers: `12 m^2` is 12. Of powers only those of 10 are numbers.
`2 1/2` and `2\\frac{1}{2}` are mixed numbers, two and a half; `2 5/3`, whose fraction is not below 1, is unreadable.
`−` (U+2212) is a minus. A minus straight after a digit, letter or closing bracket subtracts, so `10-4` ends in 4.
A comma separates thousands only before groups of exactly three digits: `1,2,3` is three numbers.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction

MAX_NUMBER_CHARS = 400
"""A longer number is unreadable: int() takes quadratic time, and no data set's answer has 400 digits."""

MAX_EXPONENT = 400
"""Largest power of ten; a double ends at 308."""

_UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_MIXED = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+"
_NUMBER = re.compile(
    rf"""
    (?P<sign>(?<![0-9A-Za-z)\]}}])[-+−])?          # a sign, unless it subtracts
    [$€£]?
    (?:
        (?P<whole>{_MIXED})
        (?: [ ] (?P<mtop>[0-9]+) / (?P<mbottom>[0-9]+) (?!\.?[0-9]|[ ]?/)
          | [ ]? \\[dt]?frac \s{{0,2}} \{{\s{{0,2}} (?P<mftop>[0-9]+) \s{{0,2}}\}} \s{{0,2}}
            \{{\s{{0,2}} (?P<mfbottom>[0-9]+) \s{{0,2}}\}} )
      | \\[dt]?frac \s{{0,2}}
        \{{ (?P<ftop>\s{{0,2}}[-+−]?[0-9]+) \s{{0,2}} \}} \s{{0,2}}
        \{{ \s{{0,2}} (?P<fbottom>[0-9]+) \s{{0,2}} \}}
      | 10\^\{{?(?P<tens>[-+−]?[0-9]+)\}}?
      | (?P<value>{_UNSIGNED})
        (?:
            [eE](?P<exponent>[-+−]?[0-9]+)
          | \s{{0,2}}(?:[x×*·⋅]|\\times|\\cdot)\s{{0,2}}10\s{{0,2}}\^\s{{0,2}}\{{?(?P<power>[-+−]?[0-9]+)\}}?
          | [ ]?/[ ]?(?P<bottom>[0-9]+(?:\.[0-9]+)?)
        )?
    )
    """,
    re.VERBOSE,
)

_EXPONENT = re.compile(r"\^\{?\Z")
_POWER = re.compile(r"\^\{?[-+−]?[0-9]")
_UNIT = re.compile(r"[ ~{$]*[A-Za-z°µΩ]")
"""What makes a unit of the text after a number."""


def last_number(text: str) -> Fraction | None:
    """The last number of a text that is no exponent.

    None when there is none, and when the last one is too long, divides by zero, or is raised to a power.
    """
    found = deque((match for match in _NUMBER.finditer(text) if not _is_exponent(text, match)), maxlen=1)
    return _fraction(found[0]) if found and not _POWER.match(text, found[0].end()) else None


def only_number(text: str) -> Fraction | None:
    """The number that a right answer states. None without one; `ValueError` when it may be one of several.

    The only number of the text counts. Numbers after `^` are exponents: they may follow if the text begins with the
    number and a unit, as `12 m^2` does, and are no answer themselves.
    """
    found = list(_NUMBER.finditer(text))
    stated = [match for match in found if not _is_exponent(text, match)]
    if not stated:
        return None
    has_unit = not text[: stated[0].start()].strip() and _UNIT.match(text, stated[0].end())
    if len(stated) > 1 or (len(found) > 1 and not has_unit):
        raise ValueError("several numbers")
    return _fraction(stated[0])


def whole_number(text: str) -> Fraction | None:
    """The number that a text is: nothing stands beside it but spaces, a `.` at the end, `%`, `$` or a degree sign."""
    trimmed = text.strip().rstrip(".").rstrip("%°$\\ ").strip("$ ")
    match = _NUMBER.fullmatch(trimmed)
    return None if match is None else _fraction(match)


def numbers_equal(answer: Fraction, right: Fraction, tolerance: float) -> bool:
    """Whether |answer − right| ≤ tolerance × max(1, |right|), without rounding."""
    return abs(answer - right) <= Fraction(tolerance) * max(Fraction(1), abs(right))


def number_of(value: object) -> Fraction | None:
    """The number that a JSON value is; None for a text or anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Fraction(value) if value.bit_length() <= 4 * MAX_NUMBER_CHARS else None
    if isinstance(value, float):
        return Fraction(repr(value)) if abs(value) < float("inf") else None
    return None


def _is_exponent(text: str, match: re.Match[str]) -> bool:
    return _EXPONENT.search(text[max(0, match.start() - 2) : match.start()]) is not None


def _fraction(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > MAX_NUMBER_CHARS:
        return None
    if match["whole"] is not None:
        part = _quotient(Fraction(match["mtop"] or match["mftop"]), match["mbottom"] or match["mfbottom"])
        value = None if part is None or part >= 1 else Fraction(_ascii(match["whole"])) + part
    elif match["ftop"] is not None:
        value = _quotient(Fraction(_ascii(match["ftop"])), match["fbottom"])
    elif match["tens"] is not None:
        value = _power_of_ten(match["tens"])
    else:
        value = Fraction(_ascii(match["value"]))
        if (exponent := match["exponent"] or match["power"]) is not None:
            power = _power_of_ten(exponent)
            value = None if power is None else value * power
        elif match["bottom"] is not None:
            value = _quotient(value, match["bottom"])
    if value is None:
        return None
    return -value if match["sign"] in ("-", "−") else value


def _power_of_ten(exponent: str) -> Fraction | None:
    power = int(_ascii(exponent))
    return Fraction(10) ** power if abs(power) <= MAX_EXPONENT else None


def _quotient(top: Fraction, bottom: str) -> Fraction | None:
    divisor = Fraction(bottom)
    return top / divisor if divisor else None


def _ascii(text: str) -> str:
    return text.replace("−", "-").replace(",", "").strip()
