"""Requests to a run's board: the learner's signed head of the ledger, and its entries, both as strangers' bytes."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple, TypeVar

import msgspec

from p2prl.errors import UnreachableError
from p2prl.index.index_client import UNREADABLE
from p2prl.index.public_web import PublicWeb
from p2prl.protocol import limits

MAX_HEAD_ANSWER_BYTES = 16 * 1024
"""The head of a ledger as JSON: some 700 bytes, and an incident's sentence."""

MAX_PAGE_BYTES = 8 << 20
"""Entries of one answer: 64 of 512 receipts each have 5.7 MB as base64. Of longer ones fewer are asked for."""

T = TypeVar("T")


class _Head(msgspec.Struct):
    """The part of a board's document that is read; what the learner signed is in its envelope."""

    signed_head_base64: str = ""


class _Entries(msgspec.Struct):
    entries_base64: list[str]


class Page(NamedTuple):
    """Entries as a board gave them."""

    entries: list[bytes]
    size_bytes: int
    """Bytes that were read for them."""


class BoardClient:
    """One run's board."""

    def __init__(self, web: PublicWeb, url: str) -> None:
        """`url` as a checked listing has it."""
        self._web = web
        self.url = url

    def signed_head(self) -> bytes:
        """The envelope of the newest head that the learner signed; empty when the board has none. Raises
        `UnreachableError`."""
        document = self._document("/api/v1/ledger/head", _Head, self._get("/api/v1/ledger/head", MAX_HEAD_ANSWER_BYTES))
        raw = _bytes_of(document.signed_head_base64, self.url)
        if len(raw) > limits.MAX_LEDGER_HEAD_BYTES:
            raise UnreachableError(f"{self.url} gives a head of more than {limits.MAX_LEDGER_HEAD_BYTES} bytes")
        return raw

    def entries(self, first: int, count: int) -> Page:
        """At most `count` entries from height `first` on. Raises `UnreachableError`, and where they have more than
        `MAX_PAGE_BYTES` `AnswerTooLongError`."""
        path = f"/api/v1/ledger/entries?from={first}&limit={count}"
        body = self._get(path, MAX_PAGE_BYTES)
        texts = self._document(path, _Entries, body).entries_base64[:count]
        return Page([_bytes_of(text, self.url) for text in texts], len(body))

    def _get(self, path: str, most: int) -> bytes:
        return self._web.get(self.url + path, most)

    def _document(self, path: str, kind: type[T], body: bytes) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except UNREADABLE as error:
            raise UnreachableError(f"{self.url}{path} is no answer of a board") from error


def _bytes_of(text: str, url: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreachableError(f"{url} gives bytes that are not base64") from error
