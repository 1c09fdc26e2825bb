"""Requests to an ASGI application without a socket."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI


@dataclass(frozen=True)
class Answer:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(app: FastAPI, target: str, *, method: str = "GET", **headers: str) -> Answer:
    """`target` is a path with an optional query; header names take _ for -."""
    return asyncio.run(_ask(app, target, method, headers))


async def _ask(app: FastAPI, target: str, method: str, headers: dict[str, str]) -> Answer:
    url = urlsplit(target)
    sent: list[Any] = []
    asked = [False]

    async def receive() -> dict[str, Any]:
        if asked[0]:
            return {"type": "http.disconnect"}
        asked[0] = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": url.path,
        "raw_path": url.path.encode(),
        "query_string": url.query.encode(),
        "root_path": "",
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in {"host": "localhost", **headers}.items()],
        "client": ("test", 1),
        "server": ("board", 80),
    }
    await app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    body = b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body")
    return Answer(start["status"], {k.decode().lower(): v.decode() for k, v in start["headers"]}, body)
