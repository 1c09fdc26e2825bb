"""Lists typed as one option, separated by commas."""

from __future__ import annotations


def listed(text: str) -> tuple[str, ...]:
    """The parts of `text` between commas, each once, without blanks around them."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
