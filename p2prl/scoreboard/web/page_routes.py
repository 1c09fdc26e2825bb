"""Routes for people: the page, contributors' pages, the feed, the picture for link previews, and the health check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import FastAPI, Path, Request, Response

from p2prl.redaction import redacted
from p2prl.scoreboard.documents import api_views
from p2prl.scoreboard.documents.api_schema import HealthDocument
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.web.answers import Answers
from p2prl.scoreboard.web.drawing import can_draw
from p2prl.scoreboard.web.http_responses import error_response, json_response
from p2prl.scoreboard.web.page import (
    DEFAULT_ROWS,
    PageRequest,
    render_contributor,
    render_feed,
    render_missing,
    render_page,
    render_team,
)
from p2prl.scoreboard.web.parameters import MAX_ID_CHARS, Cursor, Rows, Search, Window, origin_of
from p2prl.scoreboard.web.share_picture import share_picture

_HTML = "text/html"

_NO_CONTRIBUTOR = (
    "The ledger has no receipt of this id. A new contributor appears with the first group that was checked."
)
_NO_TEAM = "The ledger has no membership in a team of this id. A team appears with the first checked work of a member."

_NO_PAGE = "The address is of no page of this board. It may have been cut off."


def add_pages(app: FastAPI, answers: Answers) -> None:
    """Add the routes."""
    _add_board(app, answers)
    _add_profile(app, answers, "c", render_contributor, title="No such contributor", reason=_NO_CONTRIBUTOR)
    _add_profile(app, answers, "t", render_team, title="No such team", reason=_NO_TEAM)

    @app.get("/feed.atom", include_in_schema=False)
    def feed(request: Request) -> Response:
        wanted = PageRequest(origin=origin_of(request))
        return answers.text(request, lambda snapshot: render_feed(snapshot, wanted), "application/atom+xml")

    @app.get("/share.png", include_in_schema=False)
    def picture(request: Request) -> Response:
        if not can_draw():
            return error_response(404, "this board draws no pictures", "Install Pillow beside it: pip install pillow")
        return answers.body(request, share_picture, "image/png")

    @app.get("/healthz", response_model=HealthDocument, responses={503: {"model": HealthDocument}})
    def health(request: Request) -> Response:
        failure = answers.source.failure()
        # What a dial saw names addresses of the link that started this board, which the page would not show.
        reason = None if failure is None else redacted(str(failure))
        document = api_views.health_document(answers.source.snapshot(), reason)
        return json_response(request, document, status=503 if document.status == "failing" else 200)


def missing_page(answers: Answers) -> Callable[[Request], Response]:
    """Answers a browser that asks for a path of no page."""

    def respond(request: Request) -> Response:
        wanted = PageRequest(origin=origin_of(request))
        page = render_missing(answers.source.snapshot(), wanted, title="No such page", reason=_NO_PAGE)
        return Response(page, status_code=404, media_type=_HTML)

    return respond


def _add_board(app: FastAPI, answers: Answers) -> None:
    @app.get("/", include_in_schema=False)
    def page(
        request: Request,
        show: Rows = DEFAULT_ROWS,
        cursor: Cursor = None,
        q: Search = "",
        by: Literal["people", "teams"] = "people",
        window: Window = "all",
        axis: Literal["time", "step"] = "time",
    ) -> Response:
        wanted = PageRequest(
            show=show,
            cursor=cursor,
            query=q.strip(),
            by=by,
            window=window,
            axis=axis,
            origin=origin_of(request),
            has_picture=can_draw(),
        )
        return answers.text(request, lambda snapshot: render_page(snapshot, wanted), _HTML)


def _add_profile(
    app: FastAPI,
    answers: Answers,
    folder: str,
    render: Callable[[Snapshot, str, PageRequest], str | None],
    *,
    title: str,
    reason: str,
) -> None:
    """Pages of single contributors or teams, by their id."""

    @app.get(f"/{folder}/{{profile_id}}", include_in_schema=False)
    def profile(request: Request, profile_id: Annotated[str, Path(max_length=MAX_ID_CHARS)]) -> Response:
        wanted = PageRequest(origin=origin_of(request), has_picture=can_draw())

        def missing() -> Response:
            page = render_missing(answers.source.snapshot(), wanted, title=title, reason=reason)
            return Response(page, status_code=404, media_type=_HTML)

        return answers.text(request, lambda snapshot: render(snapshot, profile_id, wanted), _HTML, missing=missing)
