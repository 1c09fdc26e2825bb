"""Text made safe to print and wrapped to the terminal. Imports little, as every error passes through here."""

from __future__ import annotations

import re
import textwrap
import unicodedata

_LABEL = re.compile(r" *\S+(?: \S+)? {2,}")
"""A label and the gap after it: wrapped lines are indented to the text, not to the label."""

_MAX_INDENT = 20


_ASCII = str.maketrans(
    {"…": "...", "–": "-", "—": "-", "−": "-", "·": "-", "×": "x", "→": "to", "✓": "*", "’": "'", "≤": "<=", "≥": ">="}
)


def encodable(text: str, encoding: str) -> str:
    """`text` as a stream of this encoding can show it: signs that it lacks as ASCII, all others as question marks."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    return text


def printable_bytes(error: UnicodeError) -> tuple[str, int]:
    """Error handler of the program's own streams: a stand-in for text that they cannot encode."""
    assert isinstance(error, UnicodeEncodeError)
    text = cleaned(error.object[error.start : error.end]).translate(_ASCII)
    return text.encode("ascii", "replace").decode(), error.end


def cleaned(text: str) -> str:
    """`text` on one line, without control characters.

    Line breaks and tabs become spaces. Control and format characters are removed (escape sequences, right-to-left
    overrides), and so are lone surrogates, which no stream can encode; but bytes of a file's name that are no UTF-8
    become `\\xff`, as a shell's `$'…'` takes them. The text may come from a stranger.
    """
    spaced = re.sub(r"[\t\n\r\v\f\x85\u2028\u2029]", " ", text)
    spaced = re.sub("[\udc80-\udcff]", lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", spaced)
    return "".join(c for c in spaced if not unicodedata.category(c).startswith("C"))


def counted(number: float, noun: str, plural: str = "") -> str:
    """A whole number and what it counts: `1 group`, `2,000 groups`. `plural` for nouns that take more than an s."""
    return f"{number:,.0f} {noun if round(number) == 1 else plural or f'{noun}s'}"


def wrapped(text: str, width: int) -> list[str]:
    """Wrap `text` between words into lines of `width` columns with a hanging indent. Long words are not broken."""
    if len(text) <= width:
        return [text]
    label = _LABEL.match(text)
    indent = label.end() if label and label.end() <= _MAX_INDENT else len(text) - len(text.lstrip(" ")) + 2
    return textwrap.wrap(
        text,
        width=width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
