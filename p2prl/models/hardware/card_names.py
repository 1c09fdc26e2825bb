"""Cards by their names, as their owners know them. Pure, no torch."""

from __future__ import annotations

from collections.abc import Mapping

from p2prl.errors import ConfigError


def card_named(wanted: str, cards: Mapping[str, str]) -> str:
    """The place of the one card that a name means; `cards` are names by place, a device's or a worker's.

    A whole name goes before a part of one; upper and lower case are alike. `ConfigError` with the list of cards when
    none is meant, or several.
    """
    text = _plain(wanted)
    names = {place: _plain(name) for place, name in cards.items()}
    found = [place for place, name in names.items() if name == text] or [
        place for place, name in names.items() if text and text in name
    ]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{place} is {cards[place]}" for place in (found or cards))
    if found:
        raise ConfigError(
            f"{len(found)} cards are called {wanted[:40]!r}: {there}",
            remedy=f"Name one by more of its name, or as {found[0]}.",
        )
    raise ConfigError(f"no card here is called {wanted[:40]!r}", remedy=f"There is: {there}.")


def _plain(name: str) -> str:
    return " ".join(name.casefold().split())
