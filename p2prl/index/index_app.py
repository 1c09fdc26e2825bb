"""HTTP API and page of an index: listings come in by POST, and everything else is read.

A listing is `application/octet-stream`, which no form of another web page can send. Its subnet is that of the
connection, or of the visitor that a proxy on this machine names; it bounds how much is taken, and is never shown.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.index.index_documents import IndexHealthDocument, ListedDocument, RunsDocument
from p2prl.index.index_page import DEFAULT_CARDS, MAX_CARDS, render_index
from p2prl.index.index_state import IndexState
from p2prl.index.listing_table import ListingRefusedError, ManifestWantedError, Refusal
from p2prl.index.people_routes import add_people
from p2prl.index.submission import MAX_SUBMISSION_BYTES, OCTETS, parse_submission
from p2prl.protocol.join_link import parse_link
from p2prl.protocol.listing import run_id
from p2prl.scoreboard.documents.api_schema import ErrorDocument
from p2prl.scoreboard.web.http_responses import add_error_handlers, error_response, json_response, tagged_response
from p2prl.scoreboard.web.parameters import MAX_QUERY_CHARS, origin_of
from p2prl.scoreboard.web.visitor_limits import subnet_of_client
from p2prl.scoreboard.web.web_app import web_app
from p2prl.time_text import time_text

MANIFEST_WANTED = 428
"""HTTP status for a listing of a run whose manifest the index does not have (RFC 6585, Precondition Required)."""

_STATUSES = {
    Refusal.INVALID: 400,
    Refusal.EXPIRED: 410,
    Refusal.OLDER: 409,
    Refusal.TOO_MANY: 507,
    Refusal.TOO_OFTEN: 429,
}
_REMEDIES = {
    Refusal.INVALID: "Update p2prl, or ask the run's owner.",
    Refusal.EXPIRED: "Set this machine's clock, and send a new one.",
    Refusal.OLDER: "Send a newer one.",
    Refusal.TOO_MANY: "List the run on another index, or try again later.",
    Refusal.TOO_OFTEN: "Send one in a minute.",
}

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorDocument} for status in (*_STATUSES.values(), 413, 415, MANIFEST_WANTED)
}


def index_app(state: IndexState, *, is_public: bool) -> FastAPI:
    """The web application."""
    app = web_app("p2prl index", is_public=is_public)
    add_error_handlers(app, lambda _: Response("No such page.\n", status_code=404, media_type="text/plain"))
    _add_reading(app, state)
    _add_listing(app, state)
    add_people(app, state.people)
    return app


def _add_reading(app: FastAPI, state: IndexState) -> None:
    @app.get("/", include_in_schema=False)
    def page(
        request: Request,
        q: Annotated[str, Query(max_length=MAX_QUERY_CHARS)] = "",
        show: Annotated[int, Query(ge=1, le=MAX_CARDS)] = DEFAULT_CARDS,
    ) -> Response:
        html = render_index(state.rows(), origin=origin_of(request), query=q.strip(), show=show)
        return tagged_response(request, html.encode(), "text/html; charset=utf-8")

    @app.get("/api/v1/runs", response_model=RunsDocument)
    def runs(request: Request) -> Response:
        return tagged_response(request, state.runs_json(), "application/json")

    @app.get("/api/v1/manifests/{run}", response_class=Response, responses={404: {"model": ErrorDocument}})
    def manifest(request: Request, run: Annotated[str, Path(pattern="^[a-z2-7]{52}$")]) -> Response:
        try:
            raw = state.manifest(parse_link(f"p2prl://x@{run}", needs_peer=False).run)
        except ConfigError:  # 52 such characters may still be no digest
            raw = None
        if raw is None:
            return error_response(404, "this run is not listed here", "Take one from /api/v1/runs.")
        return tagged_response(request, raw, OCTETS)

    @app.get("/healthz", response_model=IndexHealthDocument)
    def health(request: Request) -> Response:
        return json_response(
            request,
            IndexHealthDocument(
                status="ok", runs=len(state.rows()), mirrors=dict(state.mirrors), ledgers=dict(state.people.ledgers)
            ),
        )


def _add_listing(app: FastAPI, state: IndexState) -> None:
    @app.post("/api/v1/listings", response_model=ListedDocument, responses=_ERRORS)
    async def listed(request: Request) -> Response:
        if request.headers.get("content-type", "") != OCTETS:
            return error_response(415, f"a listing is {OCTETS}", "p2prl learn RUN --list sends it so.")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_SUBMISSION_BYTES:
                return error_response(413, "the listing is too long", "p2prl learn RUN --list sends a short one.")
        client = request.client
        source = subnet_of_client(None if client is None else (client.host, client.port))
        try:
            sent = parse_submission(body)
            kept = state.offer(sent.listing, sent.manifest, source)
        except RemoteProtocolError as error:
            return error_response(400, str(error), _REMEDIES[Refusal.INVALID])
        except ListingRefusedError as error:
            return error_response(_STATUSES[error.why], str(error), _REMEDIES[error.why])
        except ManifestWantedError:
            return error_response(MANIFEST_WANTED, "the run is not known here", "Send its manifest with the listing.")
        expires = time_text(kept.opened.listing.expires_ms)
        return json_response(request, ListedDocument(run=run_id(kept.opened.run), expires=expires))
