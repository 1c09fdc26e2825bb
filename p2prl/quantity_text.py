"""Numbers, sizes, shares and credit as text."""

from __future__ import annotations

import math

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_FLOP_UNITS = ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), *_UNITS)


def count(value: int) -> str:
    """An integer with its digits in groups of three."""
    return f"{value:,}"


def quantity(value: float) -> str:
    """A number in three significant digits, with k, M, G and T from ten thousand on, never with an exponent."""
    for unit, prefix in _UNITS:
        if abs(value) >= unit and abs(value) >= 9_999.5:
            return f"{_significant(value / unit)} {prefix}"
    return _significant(value) if value != int(value) else f"{value:,.0f}"


def size_text(size_bytes: float) -> str:
    """A size in the unit that leaves up to three digits before the point."""
    for unit in ("B", "kB", "MB"):
        if size_bytes < 999.5:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 100 else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.1f} GB"


def credit(petaflop: float) -> str:
    """Credit in FLOP with the metric prefix that leaves one to three digits before the point."""
    flop = petaflop * 1e15
    for unit, prefix in _FLOP_UNITS:
        if flop >= unit * 0.9995:
            return f"{_significant(flop / unit)} {prefix}FLOP"
    return f"{_significant(flop)} FLOP" if flop else "0"


def percent(value: float) -> str:
    """A share as a percentage without decimals, unless that would round it to 0 % or 100 %."""
    if 0.99 < value < 1 or 0 < value < 0.01:
        return f"{100 * value:.1f} %" if 0.001 <= value <= 0.999 else f"{100 * value:.2f} %"
    return f"{100 * value:.0f} %"


def _significant(value: float) -> str:
    """Three significant digits in plain decimals; integers keep all digits."""
    if value == 0:
        return "0"
    digits = max(0, min(12, 2 - math.floor(math.log10(abs(value)))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
