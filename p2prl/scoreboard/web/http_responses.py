"""HTTP responses of the board: documents with ETags, and errors as `ErrorDocument`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from p2prl.errors import ConfigError, P2PRLError
from p2prl.protocol.digests import digest
from p2prl.scoreboard.documents.api_schema import ErrorDocument

_MAX_SHOWN_CHARS = 80
"""Characters of a request that an error message quotes."""


def json_response(request: Request, document: object, *, status: int = 200) -> Response:
    """A document as JSON, or 304 when the client already has it."""
    return tagged_response(request, msgspec.json.encode(document), "application/json", status=status)


def tagged_response(request: Request, body: bytes, media_type: str, *, status: int = 200) -> Response:
    """The body with its ETag, or 304 when the client already has it."""
    tag = f'W/"{digest("p2prl/etag/v1", body).hex()[:32]}"'
    known = {_opaque(part) for part in request.headers.get("if-none-match", "").split(",")}
    if status == 200 and _opaque(tag) in known:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(body, status_code=status, media_type=media_type, headers={"ETag": tag})


def error_response(status: int, error: str, remedy: str, *, headers: dict[str, str] | None = None) -> Response:
    """An error response with an `ErrorDocument`."""
    body = msgspec.json.encode(ErrorDocument(error=error, remedy=remedy))
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def add_error_handlers(app: FastAPI, missing_page: Callable[[Request], Response]) -> None:
    """Return every error as an `ErrorDocument`, including those of the web framework.

    A browser that asks for a page that is not there gets `missing_page`.
    """

    @app.exception_handler(P2PRLError)
    def own_error(request: Request, error: P2PRLError) -> Response:  # noqa: ARG001 - FastAPI's signature
        return error_response(400 if isinstance(error, ConfigError) else 503, str(error), error.remedy)

    @app.exception_handler(RequestValidationError)
    def invalid_parameter(request: Request, error: RequestValidationError) -> Response:  # noqa: ARG001
        first = error.errors()[0]
        name = str(first["loc"][-1])[:_MAX_SHOWN_CHARS]
        return error_response(422, f"{name}: {first['msg']}", "The legal values are listed in /api/v1/openapi.json.")

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:_MAX_SHOWN_CHARS]
        headers = dict(error.headers or {})
        if error.status_code == 404 and _wants_a_page(request):
            return missing_page(request)
        if error.status_code == 405:
            return error_response(
                405, f"{request.method} is not allowed", f"Use {headers.get('allow', 'GET')}.", headers=headers
            )
        message = f"{path} does not exist" if error.status_code == 404 else f"{path}: {error.detail}"
        return error_response(
            error.status_code, message, "The paths are listed in /api/v1/openapi.json.", headers=headers
        )


def _wants_a_page(request: Request) -> bool:
    """Whether a person asks: the API answers in JSON whatever a browser says that it takes."""
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")


def _opaque(tag: str) -> str:
    """An ETag without its weakness mark: If-None-Match compares weakly (RFC 9110, section 13.1.2)."""
    return tag.strip().removeprefix("W/")
