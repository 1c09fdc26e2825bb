"""Names that a person types and strangers read: the one rule for what they may hold.

Names of machines and people are derived from their keys (`display_names`), and nobody can type one. A team chooses its
own. So the rule keeps out what a page, a terminal or a reader could be fooled by: links, markup, control and invisible
characters, text that is drawn over its neighbors, two ways to write one name, and letters of one alphabet between those
of another that look like them.

Every reader of a ledger must come to the same result, whatever its Python. So the rule reads the characters of Unicode
3.2, which Python has in every version for this purpose: all scripts in wide use are in it, and later characters are
refused by everybody.
"""

from __future__ import annotations

import unicodedata
from itertools import pairwise

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.protocol import limits

_UNICODE = unicodedata.ucd_3_2_0

_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd"})
"""Letters, their marks, and digits."""

_MARKS = frozenset({"Mn", "Mc"})

_SIGNS = frozenset(" -_'!&+.")
"""None of them has a meaning in HTML attributes, Markdown links, shells or URLs that a name could use."""

_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u3164\uffa0") | frozenset(
    map(chr, range(0xFE00, 0xFE10))
)
"""Letters and marks that nobody sees: fillers, joiners and variation selectors."""

_ALIKE = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "GEORGIAN", "DESERET"})
"""Alphabets of which many letters look like those of another: a name has letters of one of them at most. Other scripts
go with any, as in Japanese. Unicode has this rule for identifiers (UTS 39, moderately restrictive)."""

_MOST_MARKS = 2
"""Marks on one letter; more are drawn over the lines above and below."""


def check_typed_name(name: str) -> None:
    """Raise `RemoteProtocolError` unless strangers may be shown this name."""
    if fault := _fault(name):
        raise RemoteProtocolError(f"name: {fault}")


def typed_name(text: str) -> str:
    """The name that a person means by a text: one form of each character, single spaces.

    Raises `ConfigError` when no peer would accept it.
    """
    name = " ".join(_UNICODE.normalize("NFKC", text).split())
    if fault := _fault(name):
        raise ConfigError(
            f"this name will not do: {fault}",
            remedy=f"Use 1 to {limits.MAX_TYPED_NAME_CHARS} letters, digits and spaces, or - _ ' ! & + and full stops.",
        )
    return name


def _fault(name: str) -> str:
    """What is wrong with a name; empty for nothing."""
    if not 0 < len(name) <= limits.MAX_TYPED_NAME_CHARS:
        return f"it has {len(name)} characters, not 1 to {limits.MAX_TYPED_NAME_CHARS}"
    categories = [_UNICODE.category(char) for char in name]
    if any(
        char in _INVISIBLE or (kind not in _CATEGORIES and char not in _SIGNS)
        for char, kind in zip(name, categories, strict=True)
    ):
        return "it has a character that a name may not hold"
    if _UNICODE.normalize("NFKC", name) != name:
        return "it is not in the one form of its characters (NFKC)"
    if name != name.strip(" ") or "  " in name:
        return "it has spaces at an end or in a row"
    if any(char == "." and following != " " for char, following in pairwise(name)):
        return "it has a full stop inside a word, as an address of a web site"
    if all(char in _SIGNS for char in name) or categories[0] in _MARKS:
        return "it does not begin with a letter or has none"
    runs = "".join("m" if kind in _MARKS else " " for kind in categories).split()
    if any(len(run) > _MOST_MARKS for run in runs):
        return "it has too many marks on one letter"
    # The first word of a letter's name in Unicode is its script, and no name ever changes.
    scripts = {
        _UNICODE.name(char).partition(" ")[0] for char, kind in zip(name, categories, strict=True) if kind[0] == "L"
    }
    if len(alike := sorted(scripts & _ALIKE)) > 1:
        return f"it mixes letters of {' and '.join(alike).title()}, of which many look alike"
    return ""
