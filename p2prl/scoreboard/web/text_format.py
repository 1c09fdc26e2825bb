"""Numbers, times and codes as text for people: the filters of the page's templates."""

from __future__ import annotations

import math

from p2prl.plain_text import counted
from p2prl.protocol.rejection_reasons import RejectionReason

_SHORT_ID = 6
"""Characters of a peer id shown beside a name: 58^6 = 38 billion, enough to tell two equal names apart."""

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_FLOP_UNITS = ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), *_UNITS)

_IGNORED_LINES = {
    "impossible_receipt": "receipt with an impossible number",
    "second_receipt": "second receipt of one group",
    "impossible_verdict": "verdict with an impossible number",
    "second_verdict": "second verdict of one validator on one group",
    "verdict_on_own_work": "verdict of a validator on its own work",
    "verdict_on_another_group": "verdict that does not fit the group's receipt",
    "second_delegation": "delegation of a machine that says nothing new",
    "too_many_delegations": "delegation beyond the number that counts",
    "revocation_of_nothing": "revocation without a delegation",
    "second_revocation": "revocation that says nothing new",
    "too_many_revocations": "revocation beyond the number that counts",
    "membership_of_another": "membership that none of the member's machines sent",
    "second_membership": "membership that says nothing new",
    "too_many_memberships": "membership beyond the number that counts",
}


def count(value: int) -> str:
    """An integer with its digits in groups of three."""
    return f"{value:,}"


def quantity(value: float) -> str:
    """A number in three significant digits, with k, M, G and T from ten thousand on, never with an exponent."""
    for unit, prefix in _UNITS:
        if abs(value) >= unit and abs(value) >= 9_999.5:
            return f"{_significant(value / unit)} {prefix}"
    return _significant(value) if value != int(value) else f"{value:,.0f}"


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


def rejection(code: str) -> str:
    """A sentence that explains a rejection reason."""
    try:
        return RejectionReason(code).explanation
    except ValueError:
        return "A reason unknown to this version of the board."


def ignored_line(rule: str) -> str:
    """Description of a kind of ignored ledger line."""
    return _IGNORED_LINES[rule]


def short_id(peer_id: str) -> str:
    """The end of a peer id; the beginning is the same for every Ed25519 key."""
    return peer_id[-_SHORT_ID:]


def moment(time: str | None) -> str:
    """An RFC 3339 time for people."""
    return "never" if time is None else time.replace("T", " ").replace("Z", " UTC")


def quoted(text: str) -> str:
    """A text as one POSIX shell argument, always quoted: a join link has a ? that zsh would expand."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _significant(value: float) -> str:
    """Three significant digits in plain decimals; integers keep all digits."""
    if value == 0:
        return "0"
    digits = max(0, min(12, 2 - math.floor(math.log10(abs(value)))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


FILTERS = {
    function.__name__: function
    for function in (count, counted, quantity, credit, percent, rejection, ignored_line, short_id, moment, quoted)
}
"""Filters by their name in templates."""
