"""The page of an index: cards of runs, rendered on the server and fully escaped, without any script.

Names, goals and notes are signed by strangers, which makes them authentic but not harmless: the template escapes
everything, and no text becomes a link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from p2prl.index.index_documents import NO_ENDORSEMENT, ListedRunDocument, listed_run
from p2prl.index.listing_table import Row
from p2prl.index.run_choice import Offer, Wishes, by_need
from p2prl.quantity_text import size_text
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.web.page import FILTERS

DEFAULT_CARDS = 24
"""Cards of one page: a visitor on a slow phone has them in 100 KB."""

MAX_CARDS = 240


@dataclass(frozen=True, slots=True)
class Card:
    """A run on the page."""

    run: ListedRunDocument
    owner_name: str
    """Words made of the owner's key: easier to tell apart, and no name that anybody chose."""
    wants: int
    """Volunteers that it would have if it had all that it misses."""


def render_index(rows: Sequence[Row], *, origin: str, query: str = "", show: int = DEFAULT_CARDS) -> str:
    """The page: the runs that need volunteers most first, then those that are down or have ended. `origin` is the URL
    by which the visitor reached it."""
    offers = {offer.run: offer for offer in (_offer(row) for row in rows)}
    ranks = {offer.run: place for place, offer in enumerate(by_need(tuple(offers.values()), Wishes()))}
    cards = [
        Card(run=document, owner_name=display_name(row.kept.opened.author), wants=offers[document.run].wanted)
        for row in rows
        if _matches(document := listed_run(row), query)
    ]
    cards.sort(key=lambda card: (ranks.get(card.run.run, len(ranks)), card.run.run))
    return environment.get_template("runs.html").render(
        cards=cards[:show],
        found=len(cards),
        total=len(rows),
        query=query,
        show=show,
        more=min(MAX_CARDS, show + DEFAULT_CARDS) if len(cards) > show else 0,
        origin=origin,
        note=NO_ENDORSEMENT,
    )


def _offer(row: Row) -> Offer:
    state = row.kept.opened.listing.state
    return Offer(row.kept.opened, row.crowd, "" if state == "running" else state)


def _matches(run: ListedRunDocument, query: str) -> bool:
    text = f"{run.name} {run.goal} {run.content} {run.base_model} {run.owner} {run.run}".casefold()
    return all(word in text for word in query.casefold().split())


environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
environment.filters.update({**FILTERS, "size": size_text})
