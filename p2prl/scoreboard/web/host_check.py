"""Host check of a board on loopback: only this machine's own pages may read it.

A browser on this machine runs the pages of strangers. Such a page may ask `http://127.0.0.1:8000`, where the browser
keeps the answer from it (same origin), or make its own name resolve to 127.0.0.1, where only the Host header tells.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

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
        if scope["type"] == "http" and _name(Headers(scope=scope).get("host", "")) not in self._names:
            answer = error_response(
                421, "this board answers on this machine alone", "Open it as localhost, or start it with --public."
            )
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _name(host: str) -> str:
    """The Host header without its port, in lower case."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()
