"""The web application of a board or an index before its routes: compression, who may read it, headers, static files."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware

from p2prl.scoreboard.web.http_middleware import ResponseRules
from p2prl.scoreboard.web.loopback_only import LOOPBACK_NAMES, HostCheck
from p2prl.scoreboard.web.page import STATIC

_GZIP_FROM_BYTES = 1_000
"""Smaller responses fit one packet with or without compression."""


def web_app(title: str, *, is_public: bool) -> FastAPI:
    """An application without routes of its own. A public one may be read from any origin, one on loopback from its own
    pages alone."""
    app = FastAPI(
        title=title,
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        redirect_slashes=False,  # an address with a slash too many is not found, as any other
    )
    app.add_middleware(GZipMiddleware, minimum_size=_GZIP_FROM_BYTES, compresslevel=5)
    if is_public:
        app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "HEAD"], expose_headers=["ETag"])
    else:
        app.add_middleware(HostCheck, names=LOOPBACK_NAMES)
    app.add_middleware(ResponseRules)  # the outermost
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app
