"""Server-sent events of a board: `change` whenever the page would look different."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from p2prl.scoreboard.documents.api_schema import ErrorDocument
from p2prl.scoreboard.ledger.ledger_sources import LedgerSource, Snapshot
from p2prl.scoreboard.web.http_middleware import HEAD_ONLY
from p2prl.scoreboard.web.http_responses import error_response

MAX_STREAMS = 256
"""Visitors served with events at the same time; further ones ask by themselves, as the page does without events."""

_LOOK_S = 1.0
"""Seconds between two looks at the ledger; also the longest time that a stream outlives the board's end."""

_KEEP_ALIVE_S = 15.0
"""Seconds of silence after which a comment is sent: proxies close a connection without traffic after a minute."""

_MEDIA_TYPE = "text/event-stream"


class EventStreams:
    """The open streams of a board."""

    def __init__(self, source: LedgerSource) -> None:
        self._source = source
        self._open = 0
        self._closing = False

    def close(self) -> None:
        """End all streams soon."""
        self._closing = True

    def add_route(self, app: FastAPI) -> None:
        """Serve the streams under /api/v1/events."""

        @app.get(
            "/api/v1/events",
            response_class=StreamingResponse,
            responses={
                200: {"content": {_MEDIA_TYPE: {}}, "description": "`change` events with `height` and `head`."},
                503: {"model": ErrorDocument, "description": "Too many streams are open."},
            },
        )
        async def events(request: Request) -> Response:
            if request.scope.get(HEAD_ONLY):
                return Response(media_type=_MEDIA_TYPE)
            if self._open >= MAX_STREAMS:
                return error_response(503, f"{MAX_STREAMS} streams are open", "Ask /api/v1/ledger/head now and then.")
            return StreamingResponse(self.events(request.headers.get("last-event-id")), media_type=_MEDIA_TYPE)

    async def events(self, seen: str | None) -> AsyncIterator[str]:
        """The text of one stream; `seen` is the id of the last one that the visitor got from an earlier stream."""
        self._open += 1
        try:
            yield "retry: 3000\n\n"
            shown, silent_s = seen, 0.0
            while not self._closing:
                snapshot = await run_in_threadpool(self._source.snapshot)
                tag = state_tag(snapshot)
                if shown is None:
                    shown = tag
                    yield f"id: {tag}\n\n"
                elif tag != shown:
                    shown, silent_s = tag, 0.0
                    yield _event(snapshot, tag)
                elif silent_s >= _KEEP_ALIVE_S:
                    silent_s = 0.0
                    yield ": still here\n\n"
                await asyncio.sleep(_LOOK_S)
                silent_s += _LOOK_S
        finally:
            self._open -= 1


def state_tag(snapshot: Snapshot) -> str:
    """A short text that differs whenever the page does."""
    board = snapshot.board
    head = "waiting" if board is None else f"{board.height}-{board.head.hex()[:16]}"
    offline = snapshot.learner_offline_since is not None
    numbers = (snapshot.policy_version, snapshot.learner_step, snapshot.signed_height, len(snapshot.evaluations))
    flags = (snapshot.finished, offline, snapshot.incident is not None)
    pace = "" if snapshot.pace is None else f"{snapshot.pace.realised:.2f}"
    ranks = "" if snapshot.ranks is None else f"{snapshot.ranks.plan}x{snapshot.ranks.hosts}"
    return "-".join([head, *map(str, numbers), "".join("01"[flag] for flag in flags), pace, ranks])


def _event(snapshot: Snapshot, tag: str) -> str:
    board = snapshot.board
    document = {"height": board.height if board else 0, "head": board.head.hex() if board else None}
    return f"id: {tag}\nevent: change\ndata: {msgspec.json.encode(document).decode()}\n\n"
