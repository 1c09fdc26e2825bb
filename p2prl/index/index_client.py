"""Requests to an index: its listings, a run's manifest, and a listing of one's own, each with a deadline and a bound.

What an index answers is as little trusted as what a peer sends: every listing is opened again, and a run's manifest is
known by its digest. An index can leave runs out, and nothing more.
"""

from __future__ import annotations

import base64
import binascii
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import TypeVar

import msgspec

from p2prl.errors import ConfigError, RemoteProtocolError, StaleWorkError, UnreachableError
from p2prl.index.submission import OCTETS, submission
from p2prl.net.process.peer_list import web_opener
from p2prl.protocol.listing import MAX_MANIFEST_BYTES, OpenedListing, open_listing, run_id

MAX_ANSWER_BYTES = 16 << 20
"""Listings of an index: 1,024 of the longest have 11 MB as JSON."""

_ANSWER_S = 10.0
"""For a whole answer: one that takes longer must not hold up a worker, and another index may be faster."""

MOST_LISTED = 4_096
"""Listings of an answer that are opened, four times as many as an index keeps: each takes a check of a signature."""

MOST_CROWD = 1_024
"""Largest crowd that is believed: all listings of an index."""

_MANIFEST_WANTED = 428

_PART_BYTES = 64 * 1024

T = TypeVar("T")


class _Listed(msgspec.Struct):
    """The part of a listing's document that is read; the rest is in the signed record."""

    record_base64: str
    crowd: int = 1


class _Runs(msgspec.Struct):
    runs: list[_Listed]


class _Error(msgspec.Struct):
    error: str


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a stranger's JSON raises: the last where it is nested deeper than Python's calls may be."""


@dataclass(frozen=True, slots=True)
class Found:
    """A listing that an index gave."""

    opened: OpenedListing
    crowd: int
    """Listings that share its subnet there, at least 1."""


class IndexClient:
    """One index."""

    def __init__(self, url: str) -> None:
        """`url` as `index_url` gives it."""
        self.url = url

    def listings(self, *, now: float) -> list[Found]:
        """Its listings that hold at `now`, each run once. Raises `UnreachableError` when it gives none of the kind."""
        body = self._get("/api/v1/runs", MAX_ANSWER_BYTES)
        try:
            document = msgspec.json.decode(body, type=_Runs)
        except UNREADABLE as error:
            raise UnreachableError(f"{self.url} answers, and is no index of runs: {error}"[:300]) from error
        found: dict[bytes, Found] = {}
        for each in document.runs[:MOST_LISTED]:
            try:
                opened = open_listing(base64.b64decode(each.record_base64, validate=True), now=now)
            except (RemoteProtocolError, StaleWorkError, binascii.Error, ValueError):
                continue  # its index is at fault, or one of the two clocks
            before = found.get(opened.run)
            if before is None or before.opened.listing.sent_ms < opened.listing.sent_ms:
                found[opened.run] = Found(opened, min(max(1, each.crowd), MOST_CROWD))
        return list(found.values())

    def manifest(self, opened: OpenedListing) -> bytes:
        """The manifest of a listed run, which the caller checks. Raises `UnreachableError`."""
        return self._get(f"/api/v1/manifests/{run_id(opened.run)}", MAX_MANIFEST_BYTES)

    def submit(self, listing: bytes, manifest: bytes) -> None:
        """List a run. Raises `UnreachableError`, or `ConfigError` with the index's reason to refuse."""
        status, answer = self._post(submission(listing, b""))
        if status == _MANIFEST_WANTED:
            status, answer = self._post(submission(listing, manifest))
        if status != 200:
            raise ConfigError(f"{self.url} refuses the listing: {_reason(answer, status)}")

    def _get(self, path: str, most: int) -> bytes:
        request = urllib.request.Request(self.url + path)  # noqa: S310 - checked by `index_url`
        status, body = _within(_ANSWER_S, self.url, lambda: _exchange(request, most))
        if status != 200:
            raise UnreachableError(f"{self.url}{path} answers {status}: {_reason(body, status)}")
        return body

    def _post(self, body: bytes) -> tuple[int, bytes]:
        request = urllib.request.Request(  # noqa: S310 - checked by `index_url`
            f"{self.url}/api/v1/listings", data=body, headers={"Content-Type": OCTETS}, method="POST"
        )
        return _within(_ANSWER_S, self.url, lambda: _exchange(request, _PART_BYTES))


def _reason(body: bytes, status: int) -> str:
    try:
        return msgspec.json.decode(body, type=_Error).error[:300]
    except UNREADABLE:
        return f"status {status}"


def _why(error: Exception) -> str:
    """A failure in the system's words, without its number and the library's brackets."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    system = cause.strerror if isinstance(cause, OSError) else None
    return system or str(cause) or type(cause).__name__


def _exchange(request: urllib.request.Request, most: int) -> tuple[int, bytes]:
    """Status and body of an answer of at most `most` bytes. Raises `OSError` or `HTTPException`."""
    request.add_header("User-Agent", "p2prl")  # without a version: nobody needs to know it
    deadline = time.monotonic() + _ANSWER_S
    try:
        response = web_opener().open(request, timeout=_ANSWER_S)
    except urllib.error.HTTPError as error:
        response, most = error, _PART_BYTES
    if response is None:
        raise urllib.error.URLError("it is no web address")
    body = b""
    with response:
        while part := response.read1(_PART_BYTES):
            body += part
            if len(body) > most:
                raise urllib.error.URLError(f"its answer has more than {most:,} bytes")
            if time.monotonic() > deadline:
                raise urllib.error.URLError(f"its answer took longer than {_ANSWER_S:.0f} s")
        return int(response.status), body


def _within(seconds: float, url: str, call: Callable[[], T]) -> T:
    """What `call` returns, on a thread that nobody waits for at the end. Raises `UnreachableError`."""
    done: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            done.append(call())
        except (OSError, HTTPException, ValueError) as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds + 1.0)
    if done:
        return done[0]
    why = _why(failed[0]) if failed else f"no answer within {seconds:.0f} s"
    raise UnreachableError(
        f"the index {url} cannot be reached: {why}"[:300], remedy="Check the address, or name another."
    )
