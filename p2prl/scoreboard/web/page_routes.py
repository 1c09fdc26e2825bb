"""Routes for people: the page, contributors' pages, the feed, the picture for link previews, and the health check."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, Path, Request, Response

from p2prl.scoreboard.documents import api_views
from p2prl.scoreboard.documents.api_schema import HealthDocument
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
)
from p2prl.scoreboard.web.parameters import MAX_ID_CHARS, Cursor, Rows, Search, Window, origin_of
from p2prl.scoreboard.web.share_picture import share_picture

_HTML = "text/html"


def add_pages(app: FastAPI, answers: Answers) -> None:
    """Add the routes."""
    _add_board(app, answers)
    _add_contributor(app, answers)

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
        document = api_views.health_document(answers.source.snapshot(), None if failure is None else str(failure))
        return json_response(request, document, status=503 if document.status == "failing" else 200)


def _add_board(app: FastAPI, answers: Answers) -> None:
    @app.get("/", include_in_schema=False)
    def page(
        request: Request,
        show: Rows = DEFAULT_ROWS,
        cursor: Cursor = None,
        q: Search = "",
        window: Window = "all",
        axis: Literal["time", "step"] = "time",
    ) -> Response:
        wanted = PageRequest(
            show=show,
            cursor=cursor,
            query=q.strip(),
            window=window,
            axis=axis,
            origin=origin_of(request),
            has_picture=can_draw(),
        )
        return answers.text(request, lambda snapshot: render_page(snapshot, wanted), _HTML)


def _add_contributor(app: FastAPI, answers: Answers) -> None:
    @app.get("/c/{contributor_id}", include_in_schema=False)
    def contributor(request: Request, contributor_id: Annotated[str, Path(max_length=MAX_ID_CHARS)]) -> Response:
        wanted = PageRequest(origin=origin_of(request), has_picture=can_draw())

        def missing() -> Response:
            page = render_missing(answers.source.snapshot(), wanted)
            return Response(page, status_code=404, media_type=_HTML)

        return answers.text(
            request, lambda snapshot: render_contributor(snapshot, contributor_id, wanted), _HTML, missing=missing
        )
