"""Answers of a board: made from its newest snapshot, and kept until the snapshot changes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
from fastapi import Request, Response

from p2prl.scoreboard.ledger.ledger_sources import LedgerSource, Snapshot
from p2prl.scoreboard.web.http_responses import tagged_response

MAX_KEPT_BYTES = 16 << 20
"""Bytes of answers kept of one snapshot: some hundred pages. Visitors choose what they ask for, so it is bounded."""


class Answers:
    """Builds answers and keeps them. Threads may ask at the same time; two of them may build the same answer."""

    def __init__(self, source: LedgerSource) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._kept: dict[tuple[str, str], bytes] = {}
        self._size = 0

    def json(
        self, request: Request, build: Callable[[Snapshot], object], *, missing: Callable[[], Response] | None = None
    ) -> Response:
        """A document as JSON; `missing` answers when `build` returns None."""

        def encoded(snapshot: Snapshot) -> bytes | None:
            document = build(snapshot)
            return None if document is None else msgspec.json.encode(document)

        return self.body(request, encoded, "application/json", missing=missing)

    def text(
        self,
        request: Request,
        build: Callable[[Snapshot], str | None],
        media_type: str,
        *,
        missing: Callable[[], Response] | None = None,
    ) -> Response:
        """A text; `missing` answers when `build` returns None."""

        def encoded(snapshot: Snapshot) -> bytes | None:
            text = build(snapshot)
            return None if text is None else text.encode()

        return self.body(request, encoded, f"{media_type}; charset=utf-8", missing=missing)

    def body(
        self,
        request: Request,
        build: Callable[[Snapshot], bytes | None],
        media_type: str,
        *,
        missing: Callable[[], Response] | None = None,
    ) -> Response:
        """Bytes with their ETag, or 304 when the client has them; `missing` answers when `build` returns None."""
        snapshot = self.source.snapshot()
        # The page contains its own address, so the Host header is part of the key: `request.url` includes it.
        key = (media_type, str(request.url))
        body = self._kept_body(snapshot, key)
        if body is None:
            body = build(snapshot)
            if body is None:
                assert missing is not None, "what may be missing has an answer for it"
                return missing()
            self._keep(snapshot, key, body)
        return tagged_response(request, body, media_type)

    def _kept_body(self, snapshot: Snapshot, key: tuple[str, str]) -> bytes | None:
        with self._lock:
            if snapshot is not self._snapshot:
                self._snapshot, self._kept, self._size = snapshot, {}, 0
            return self._kept.get(key)

    def _keep(self, snapshot: Snapshot, key: tuple[str, str], body: bytes) -> None:
        with self._lock:
            size = len(body) + len(key[1])
            if snapshot is self._snapshot and key not in self._kept and self._size + size <= MAX_KEPT_BYTES:
                self._kept[key] = body
                self._size += size
