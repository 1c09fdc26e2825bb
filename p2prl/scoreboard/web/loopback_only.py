"""Host check of a board on loopback: only this machine's own pages may read it.

A browser on this machine runs the pages of strangers. Such a page may ask `http://127.0.0.1:8000`, where the browser
keeps the answer from it (same origin), or make its own name resolve to 127.0.0.1, where only the Host header tells.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from p2prl.scoreboard.web.http_responses import error_response

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names under which a board on loopback answers."""


def is_loopback(host: str) -> bool:
    """Whether a board that listens on `host` can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class HostCheck:
    """Refuses requests under any other name."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if scope["type"] == "http" and _name(headers.get("host", "")) not in self._names:
            answer = error_response(
                421,
                "this page answers on this machine alone",
                "Open it as localhost, or start it with --public.",
            )
            await answer(scope, receive, send)
            return
        if scope["type"] == "http" and _is_cross_site(headers):
            answer = error_response(
                403,
                "another web page may not read this board",
                "Open the board in a tab of its own, or start it with --public.",
            )
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_cross_site(headers: Headers) -> bool:
    """Whether a page of another origin sent the request, unless the visitor followed a link to the board.

    `Sec-Fetch-Site` is set by the browser and not by the page (W3C Fetch Metadata).
    """
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        return True
    foreign = headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
    followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return foreign and not followed


def _name(host: str) -> str:
    """The Host header without its port, in lower case."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()
