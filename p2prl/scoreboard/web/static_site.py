"""A board as files: the same pages and documents for a web server that runs no program."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from p2prl.scoreboard.documents import api_views
from p2prl.scoreboard.documents.answers_view import answers_document
from p2prl.scoreboard.documents.evaluation_view import evaluations_document
from p2prl.scoreboard.documents.milestones import milestones_document
from p2prl.scoreboard.documents.network_health_view import network_document
from p2prl.scoreboard.documents.ranked_leaderboard import leaderboard_document
from p2prl.scoreboard.documents.team_view import team_document, teams_document
from p2prl.scoreboard.documents.work_over_time import activity_document
from p2prl.scoreboard.ledger.ledger_sources import LedgerSource, Snapshot
from p2prl.scoreboard.ledger_dump import write_dump
from p2prl.scoreboard.web.drawing import can_draw
from p2prl.scoreboard.web.page import STATIC, PageRequest, render_contributor, render_feed, render_page, render_team
from p2prl.scoreboard.web.share_picture import share_picture

ROWS = 500
"""Rows of the leaderboard in one file: a site without a server cannot search, but a browser finds text in a page."""

CONTRIBUTOR_PAGES = 1_000
"""Contributors, and teams, with a page of their own, those with the most credit: 6 KB each."""

LEDGER_FILE = "run.ledger"

_EVERYTHING = 1 << 48


@dataclass(frozen=True, slots=True)
class WrittenSite:
    """What was written."""

    pages: int
    contributors: int
    """Contributors with a page."""
    entries: int
    """Ledger entries in the dump."""


def write_site(source: LedgerSource, directory: Path, *, url: str = "") -> WrittenSite:
    """Write the whole site into an empty directory. `url` is where it will be served, for links in feeds and previews.

    Raises `NotReadyError` before the manifest is known, and `MachineError` when the ledger cannot be written.
    """
    snapshot, url = source.snapshot(), url.rstrip("/")
    api_views.require_run(snapshot)
    shutil.copytree(STATIC, directory / "static")
    (directory / ".nojekyll").touch()  # GitHub Pages would drop files that begin with an underscore
    has_picture = can_draw()
    if has_picture:
        (directory / "share.png").write_bytes(share_picture(snapshot))
    request = PageRequest(
        show=ROWS, origin=url, root="", is_static=True, has_picture=has_picture and bool(url), linked=CONTRIBUTOR_PAGES
    )
    (directory / "feed.atom").write_text(render_feed(snapshot, request), encoding="utf-8")
    pages = _write_pages(snapshot, directory, request)
    contributors = _write_contributors(snapshot, directory / "c", request)
    _write_teams(snapshot, directory, request)
    _write_documents(snapshot, directory / "api" / "v1")
    entries = write_dump(source, directory / LEDGER_FILE, snapshot=snapshot)
    return WrittenSite(pages, contributors, entries)


def _write_pages(snapshot: Snapshot, directory: Path, request: PageRequest) -> int:
    cursor: str | None = None
    number = 1
    while True:
        page = leaderboard_document(snapshot, by="people", limit=ROWS, cursor=cursor)
        following = f"page-{number + 1}.html" if page.next_cursor else ""
        html = render_page(snapshot, replace(request, cursor=cursor, next_page=following))
        (directory / ("index.html" if number == 1 else f"page-{number}.html")).write_text(html, encoding="utf-8")
        if page.next_cursor is None:
            return number
        cursor, number = page.next_cursor, number + 1


def _write_contributors(snapshot: Snapshot, directory: Path, request: PageRequest) -> int:
    directory.mkdir()
    below = replace(request, root="../")
    people = leaderboard_document(snapshot, by="people", limit=CONTRIBUTOR_PAGES).people
    for person in people:
        html = render_contributor(snapshot, person.id, below)
        assert html is not None, "everybody in the table has a page"
        (directory / f"{person.id}.html").write_text(html, encoding="utf-8")
    return len(people)


def _write_teams(snapshot: Snapshot, directory: Path, request: PageRequest) -> None:
    """The table of the teams, and a page and a document of each."""
    table = replace(request, by="teams", show=CONTRIBUTOR_PAGES)
    (directory / "teams.html").write_text(render_page(snapshot, table), encoding="utf-8")
    documents = directory / "api" / "v1" / "teams"
    documents.mkdir(parents=True)
    (directory / "t").mkdir()
    below = replace(request, root="../")
    for team in teams_document(snapshot, limit=CONTRIBUTOR_PAGES).teams:
        html = render_team(snapshot, team.id, below)
        assert html is not None, "every team in the table has a page"
        (directory / "t" / f"{team.id}.html").write_text(html, encoding="utf-8")
        (documents / f"{team.id}.json").write_bytes(msgspec.json.encode(team_document(snapshot, team.id)))


def _write_documents(snapshot: Snapshot, directory: Path) -> None:
    everyone = {by: leaderboard_document(snapshot, by=by, limit=_EVERYTHING) for by in ("people", "validators")}
    documents = {
        "run": api_views.run_document(snapshot),
        "leaderboard": everyone["people"],
        "validators": everyone["validators"],
        "teams": teams_document(snapshot, limit=_EVERYTHING),
        "metrics": api_views.metrics_document(snapshot, from_step=0, to_step=_EVERYTHING, points=5_000),
        "evaluations": evaluations_document(snapshot, limit=_EVERYTHING),
        "answers": answers_document(snapshot),
        "activity": activity_document(snapshot),
        "milestones": milestones_document(snapshot, limit=_EVERYTHING),
        "network": network_document(snapshot),
        "ledger/head": api_views.head_document(snapshot),
    }
    for name, document in documents.items():
        path = directory / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(document))
