"""ASGI middleware around the whole board: security headers, weak ETags, HEAD requests, empty parameters."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

RESPONSE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
}
"""Sent with every response. `no-cache` lets a browser cache a response but makes it revalidate the ETag."""

HEAD_ONLY = "p2prl.head_only"
"""Key of a scope whose request was HEAD: a stream that has no end must not begin."""


class ResponseRules:
    """Applies headers, ETags and HEAD handling to every response, including static files and errors.

    ETags are weak: the same response is sent plain and gzipped, and a strong ETag would promise equal bytes (RFC 9110,
    section 8.8.3). HEAD is handled as GET without the body, because FastAPI routes accept only the methods they list.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"

        async def send_by_the_rules(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in RESPONSE_HEADERS.items():
                    headers.setdefault(name, value)
                if headers.get("etag", "").startswith('"'):
                    headers["etag"] = f"W/{headers['etag']}"
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        asked = {**scope, "query_string": _given(scope["query_string"])}
        if is_head:
            asked |= {"method": "GET", HEAD_ONLY: True}
        await self._app(asked, receive, send_by_the_rules)


def _given(query: bytes) -> bytes:
    """A query without the parameters that are empty: the examples of the documentation list all there are."""
    return b"&".join(part for part in query.split(b"&") if part.partition(b"=")[1:] != (b"=", b""))
