"""HTTP API of a board: read-only JSON under /api/v1, and one page that shows the same numbers.

Every response has an ETag. A public board may be read from any origin, one on loopback from its own pages alone. The
API never writes and has no access to addresses: a response can contain only the fields of `api_schema`.
"""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware

from p2prl.protocol import limits
from p2prl.scoreboard.documents import api_views
from p2prl.scoreboard.documents.api_schema import (
    ContributorDocument,
    EntriesDocument,
    ErrorDocument,
    EvaluationsDocument,
    HealthDocument,
    LeaderboardDocument,
    LedgerHeadDocument,
    MetricsDocument,
    RunDocument,
)
from p2prl.scoreboard.documents.evaluation_view import evaluations_document
from p2prl.scoreboard.documents.leaderboard_view import CURSOR_PATTERN, contributor_document, leaderboard_document
from p2prl.scoreboard.ledger.ledger_sources import LedgerSource
from p2prl.scoreboard.ledger_dump import dump_items
from p2prl.scoreboard.web.host_check import LOOPBACK_NAMES, HostCheck
from p2prl.scoreboard.web.http_middleware import ResponseRules
from p2prl.scoreboard.web.http_responses import add_error_handlers, error_response, json_response, tagged_response
from p2prl.scoreboard.web.page import STATIC, PageRequest, render_page

MAX_ROWS = 500
"""Rows of one leaderboard page; bounds the work of one request."""

MAX_POINTS = 5_000
"""Points of one reward curve."""

MAX_QUERY_CHARS = 100
"""Longest search, characters; more than any display name and peer id together."""

_MAX_ID_CHARS = 100
"""Characters of a contributor id in a path: a peer id has 52."""

_GZIP_FROM_BYTES = 1_000
"""Smaller responses fit one packet with or without compression."""

_LAST_STEP = (1 << 48) - 1

_ERRORS: dict[int | str, dict[str, Any]] = {
    422: {"model": ErrorDocument, "description": "A parameter is outside its range."},
    503: {"model": ErrorDocument, "description": "The board has no run manifest yet, or cannot read its ledger."},
}
_PAGE_ERRORS = {**_ERRORS, 400: {"model": ErrorDocument, "description": "The cursor was not issued by this API."}}
_ID_ERRORS = {**_ERRORS, 404: {"model": ErrorDocument, "description": "The ledger has no receipt of this id."}}

_Rows = Annotated[int, Query(ge=1, le=MAX_ROWS)]
_Cursor = Annotated[
    str | None,
    Query(
        max_length=100, json_schema_extra={"pattern": CURSOR_PATTERN}, description="next_cursor of the previous page."
    ),
]
_Search = Annotated[
    str,
    Query(
        max_length=MAX_QUERY_CHARS,
        description=(
            "Only rows that match every word, case-insensitively: a word is part of the display name, or begins or "
            "ends the peer id. `total` then counts the matches; ranks stay those of the whole table."
        ),
    ),
]


def create_app(source: LedgerSource, *, is_public: bool = False) -> FastAPI:
    """Build the board's web application over `source`, which must be thread-safe: handlers run in threads."""
    app = FastAPI(
        title="p2prl scoreboard", version="1", docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json"
    )
    app.add_middleware(GZipMiddleware, minimum_size=_GZIP_FROM_BYTES, compresslevel=5)
    if is_public:
        app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "HEAD"], expose_headers=["ETag"])
    else:
        app.add_middleware(HostCheck, names=LOOPBACK_NAMES)
    app.add_middleware(ResponseRules)  # the outermost
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    add_error_handlers(app)
    _add_page(app, source)
    _add_run_routes(app, source)
    _add_ledger_routes(app, source)
    return app


def _add_page(app: FastAPI, source: LedgerSource) -> None:
    @app.get("/", include_in_schema=False)
    def page(request: Request, show: _Rows = 50, cursor: _Cursor = None, q: _Search = "") -> Response:
        wanted = PageRequest(show=show, cursor=cursor, query=q.strip(), origin=_origin(request))
        return tagged_response(request, render_page(source.snapshot(), wanted).encode(), "text/html; charset=utf-8")

    @app.get("/healthz", response_model=HealthDocument, responses={503: {"model": HealthDocument}})
    def health(request: Request) -> Response:
        failure = source.failure()
        document = api_views.health_document(source.snapshot(), None if failure is None else str(failure))
        return json_response(request, document, status=503 if document.status == "failing" else 200)


def _add_run_routes(app: FastAPI, source: LedgerSource) -> None:
    @app.get("/api/v1/run", response_model=RunDocument, responses=_ERRORS)
    def run(request: Request) -> Response:
        return json_response(request, api_views.run_document(source.snapshot()))

    @app.get("/api/v1/leaderboard", response_model=LeaderboardDocument, responses=_PAGE_ERRORS)
    def leaderboard(
        request: Request,
        by: Literal["people", "validators"] = "people",
        limit: _Rows = 50,
        cursor: _Cursor = None,
        q: _Search = "",
    ) -> Response:
        document = leaderboard_document(source.snapshot(), by=by, limit=limit, cursor=cursor, query=q)
        return json_response(request, document)

    @app.get("/api/v1/contributors/{contributor_id}", response_model=ContributorDocument, responses=_ID_ERRORS)
    def contributor(request: Request, contributor_id: Annotated[str, Path(max_length=_MAX_ID_CHARS)]) -> Response:
        document = contributor_document(source.snapshot(), contributor_id)
        if document is None:
            return error_response(404, "the ledger has no receipt of this id", "Take an id from the leaderboard.")
        return json_response(request, document)

    @app.get("/api/v1/metrics", response_model=MetricsDocument, responses=_ERRORS)
    def metrics(
        request: Request,
        from_step: Annotated[int, Query(ge=0, le=_LAST_STEP)] = 0,
        to_step: Annotated[int, Query(ge=0, le=_LAST_STEP)] = _LAST_STEP,
        points: Annotated[int, Query(ge=1, le=MAX_POINTS)] = 1_000,
    ) -> Response:
        document = api_views.metrics_document(source.snapshot(), from_step=from_step, to_step=to_step, points=points)
        return json_response(request, document)

    @app.get("/api/v1/evaluations", response_model=EvaluationsDocument, responses=_ERRORS)
    def evaluations(request: Request, limit: _Rows = 100) -> Response:
        return json_response(request, evaluations_document(source.snapshot(), limit=limit))


def _add_ledger_routes(app: FastAPI, source: LedgerSource) -> None:
    @app.get("/api/v1/ledger/head", response_model=LedgerHeadDocument, responses=_ERRORS)
    def head(request: Request) -> Response:
        return json_response(request, api_views.head_document(source.snapshot()))

    @app.get("/api/v1/ledger/entries", response_model=EntriesDocument, responses=_ERRORS)
    def entries(
        request: Request,
        first: Annotated[int, Query(alias="from", ge=0, le=_LAST_STEP)] = 0,
        limit: Annotated[int, Query(ge=1, le=limits.MAX_LEDGER_ENTRIES_PER_REPLY)] = 64,
    ) -> Response:
        _, board = api_views.require_run(source.snapshot())
        raws = source.entries(first, min(limit, max(0, board.height - first)))
        texts = [base64.b64encode(raw).decode() for raw in raws]
        return json_response(request, EntriesDocument(from_height=first, entries_base64=texts, height=board.height))

    @app.get(
        "/api/v1/ledger/dump",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"application/octet-stream": {}}, "description": "A file for `p2prl ledger verify`."},
            503: _ERRORS[503],
        },
    )
    def dump() -> Response:
        name = {"Content-Disposition": 'attachment; filename="run.ledger"'}
        return StreamingResponse(dump_items(source), media_type="application/octet-stream", headers=name)


def _origin(request: Request) -> str:
    """The board's URL as the client wrote it, for copyable commands; a Host header with other characters is ignored."""
    origin = f"{request.url.scheme}://{request.url.netloc}"
    return origin if re.fullmatch(r"https?://[A-Za-z0-9.:\[\]-]{1,255}", origin) else "http://localhost"
