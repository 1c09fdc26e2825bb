"""The board over HTTP: read-only JSON under /api/v1, and one page that shows the same numbers.

Every answer carries an ETag and can be asked for from any origin. Nothing here writes, and nothing here knows an
address: what a request may learn is what `documents` can hold.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

import msgspec
from fastapi import FastAPI, Query, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.staticfiles import StaticFiles

from p2prl.errors import ConfigError, P2PRLError
from p2prl.protocol import limits
from p2prl.protocol.digests import digest
from p2prl.scoreboard import views
from p2prl.scoreboard.api_schema import (
    ContributorDocument,
    EntriesDocument,
    ErrorDocument,
    HealthDocument,
    LeaderboardDocument,
    LedgerHeadDocument,
    MetricsDocument,
    RunDocument,
)
from p2prl.scoreboard.ledger_sources import Source
from p2prl.scoreboard.page import PAGE_HEADERS, STATIC, render_page

MAX_ROWS = 500
"""Rows of one leaderboard page; bounds the work of one request."""

MAX_POINTS = 5_000
"""Points of one reward curve."""

_LAST_STEP = (1 << 48) - 1

_REFUSALS: dict[int | str, dict[str, object]] = {
    400: {"model": ErrorDocument},
    503: {"model": ErrorDocument},
}


def create_app(source: Source) -> FastAPI:
    """The board's web application over `source`. Handlers run in threads; `source` must allow that."""
    app = FastAPI(
        title="p2prl scoreboard", version="1", docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json"
    )
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET"], expose_headers=["ETag"])
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    _add_run_routes(app, source)
    _add_ledger_routes(app, source)

    @app.middleware("http")
    async def harden(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        for name, value in PAGE_HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @app.exception_handler(P2PRLError)
    async def refuse(request: Request, error: P2PRLError) -> Response:  # noqa: ARG001 - FastAPI's signature
        return _refusal(400 if isinstance(error, ConfigError) else 503, error)

    @app.get("/", include_in_schema=False)
    def page(request: Request, show: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 50) -> Response:
        return _tagged(request, render_page(source.snapshot(), show=show).encode(), "text/html; charset=utf-8")

    @app.get("/healthz", response_model=HealthDocument)
    def health(request: Request) -> Response:
        failure = source.failure()
        document = views.health_document(source.snapshot(), None if failure is None else str(failure))
        return _json(request, document, status=503 if document.status == "failing" else 200)

    return app


def _add_run_routes(app: FastAPI, source: Source) -> None:
    @app.get("/api/v1/run", response_model=RunDocument, responses=_REFUSALS)
    def run(request: Request) -> Response:
        return _json(request, views.run_document(source.snapshot()))

    @app.get("/api/v1/leaderboard", response_model=LeaderboardDocument, responses=_REFUSALS)
    def leaderboard(
        request: Request,
        by: Literal["people", "validators"] = "people",
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 50,
        cursor: Annotated[str | None, Query(max_length=100)] = None,
    ) -> Response:
        return _json(request, views.leaderboard_document(source.snapshot(), by=by, limit=limit, cursor=cursor))

    @app.get(
        "/api/v1/contributors/{contributor_id}",
        response_model=ContributorDocument,
        responses={**_REFUSALS, 404: {"model": ErrorDocument}},
    )
    def contributor(request: Request, contributor_id: str) -> Response:
        document = views.contributor_document(source.snapshot(), contributor_id)
        if document is None:
            missing = ConfigError("the ledger has no receipt of this id", remedy="Take an id from the leaderboard.")
            return _refusal(404, missing)
        return _json(request, document)

    @app.get("/api/v1/metrics", response_model=MetricsDocument, responses=_REFUSALS)
    def metrics(
        request: Request,
        from_step: Annotated[int, Query(ge=0, le=_LAST_STEP)] = 0,
        to_step: Annotated[int, Query(ge=0, le=_LAST_STEP)] = _LAST_STEP,
        points: Annotated[int, Query(ge=1, le=MAX_POINTS)] = 1_000,
    ) -> Response:
        document = views.metrics_document(source.snapshot(), from_step=from_step, to_step=to_step, points=points)
        return _json(request, document)


def _add_ledger_routes(app: FastAPI, source: Source) -> None:
    @app.get("/api/v1/ledger/head", response_model=LedgerHeadDocument, responses=_REFUSALS)
    def head(request: Request) -> Response:
        return _json(request, views.head_document(source.snapshot()))

    @app.get("/api/v1/ledger/entries", response_model=EntriesDocument, responses=_REFUSALS)
    def entries(
        request: Request,
        first: Annotated[int, Query(alias="from", ge=0, le=_LAST_STEP)] = 0,
        limit: Annotated[int, Query(ge=1, le=limits.MAX_LEDGER_ENTRIES_PER_REPLY)] = 64,
    ) -> Response:
        _, board = views.known(source.snapshot())
        raws = source.entries(first, min(limit, max(0, board.height - first)))
        texts = [base64.b64encode(raw).decode() for raw in raws]
        return _json(request, EntriesDocument(from_height=first, entries_base64=texts, height=board.height))


def _json(request: Request, document: object, *, status: int = 200) -> Response:
    return _tagged(request, msgspec.json.encode(document), "application/json", status=status)


def _tagged(request: Request, body: bytes, media_type: str, *, status: int = 200) -> Response:
    """The body under its ETag, or 304 when the asker has it already."""
    tag = f'"{digest("p2prl/etag/v1", body).hex()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    held = {part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")}
    if status == 200 and tag in held:
        return Response(status_code=304, headers=headers)
    return Response(body, status_code=status, media_type=media_type, headers=headers)


def _refusal(status: int, error: P2PRLError) -> Response:
    document = ErrorDocument(error=str(error), remedy=error.remedy)
    return Response(msgspec.json.encode(document), status_code=status, media_type="application/json")
