"""Signed statements as one line of text, to carry from one machine to another: a prefix and the encoded statement."""

from __future__ import annotations

import base64
import binascii
from typing import Protocol, TypeVar, cast

from p2prl.errors import IdentityError, RemoteProtocolError
from p2prl.protocol.wire_codec import Wire, decode, encode

MAX_STATEMENT_BYTES = 512
"""A statement, encoded: three keys and a signature have 192 bytes. Bounds what is parsed of a pasted text or a file."""

_MAX_TEXT_CHARS = MAX_STATEMENT_BYTES * 4 // 3


class _Signed(Protocol):
    def check(self) -> None: ...


Statement = TypeVar("Statement", bound=Wire)


def line_of(prefix: str, statement: Wire) -> str:
    """A statement as one line of text."""
    return prefix + base64.urlsafe_b64encode(encode(statement)).decode().rstrip("=")


def read_line(text: str, prefix: str, kind: type[Statement], *, name: str) -> Statement:
    """Read the line that `line_of` made of a signed `kind`; `name` is what a person calls it.

    Raises `IdentityError` unless it is a whole statement, in its one text form, whose `check` passes.
    """
    try:
        return _read(text, prefix, kind)
    except (binascii.Error, ValueError, RemoteProtocolError) as error:
        raise IdentityError(
            f"this {name} is damaged: {error}", remedy="Copy the whole line again, with nothing added."
        ) from error


def _read(text: str, prefix: str, kind: type[Statement]) -> Statement:
    body = text.removeprefix(prefix)
    if len(body) > _MAX_TEXT_CHARS:
        raise RemoteProtocolError("the text is too long")
    raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    statement = decode(raw, kind, limit_bytes=MAX_STATEMENT_BYTES)
    cast(_Signed, statement).check()
    if line_of(prefix, statement) != text:  # base64 has spare bits, and msgpack several ways to write a number
        raise RemoteProtocolError("not in its one text form")
    return statement
