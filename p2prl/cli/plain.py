"""Text that is safe to print and fits its terminal. Light, because every error message passes through here."""

from __future__ import annotations

import re
import textwrap
import unicodedata

_LABEL = re.compile(r" *\S+(?: \S+)? {2,}")
"""A label and the gap behind it: what follows a break hangs below the text, not below the label."""

_WIDEST_HANG = 20


def cleaned(text: str) -> str:
    """`text` on one line, without anything a terminal would obey.

    Line breaks and tabs become spaces. Control and format characters go (escape sequences, text that runs backwards),
    and so do lone surrogates, which no stream can encode: a stranger's words may be in it.
    """
    spaced = re.sub(r"[\t\n\r\v\f\x85\u2028\u2029]", " ", text)
    return "".join(c for c in spaced if not unicodedata.category(c).startswith("C"))


def wrapped(text: str, width: int) -> list[str]:
    """`text` broken between words into lines of `width` columns, with a hanging indent. A longer word stays whole."""
    if len(text) <= width:
        return [text]
    label = _LABEL.match(text)
    hang = label.end() if label and label.end() <= _WIDEST_HANG else len(text) - len(text.lstrip(" ")) + 2
    return textwrap.wrap(
        text,
        width=width,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
