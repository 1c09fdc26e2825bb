"""Boards of runs for tests of an index that reads ledgers: each answers as the product's does, or lies."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from p2prl.errors import UnreachableError
from p2prl.index.board_client import BoardClient
from p2prl.index.public_web import AnswerTooLongError, PublicWeb
from p2prl_lab.testing.sample_ledgers import LedgerWriter

HEAD = "/api/v1/ledger/head"
ENTRIES = "/api/v1/ledger/entries"

Answer = Callable[[str], bytes | None]
"""Body for a path with its query; None for no answer."""


class AnsweringWeb(PublicWeb):
    """A web whose servers answer what a function says. It counts what they were asked."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        object.__setattr__(self, "_answer", answer)  # the base is frozen
        object.__setattr__(self, "asked", [])

    asked: list[str]
    _answer: Answer

    def get(self, url: str, most: int) -> bytes:
        """See `PublicWeb`."""
        path = "/" + url.partition("//")[2].partition("/")[2]
        self.asked.append(path)
        body = self._answer(path)
        if body is None:
            raise UnreachableError("no answer")
        if len(body) > most:
            raise AnswerTooLongError("too long")
        return body

    @property
    def board(self) -> BoardClient:
        """A client of a board there."""
        return BoardClient(self, "https://board.example")


def ledger_board(writer: LedgerWriter, *, head: bytes | None = None, most: int = 64) -> AnsweringWeb:
    """A board over the entries of a writer as they are when it is asked; `head` is another head than the newest, and
    `most` the entries of an answer."""

    def answer(path: str) -> bytes:
        if path == HEAD:
            return head_json(writer.signed_head() if head is None else head)
        first, count = (int(parse_qs(urlsplit(path).query)[name][0]) for name in ("from", "limit"))
        return entries_json(writer.entries[first : first + min(count, most)])

    return AnsweringWeb(answer)


def head_json(raw: bytes) -> bytes:
    """The part of a board's head that an index reads."""
    return json.dumps({"signed_head_base64": base64.b64encode(raw).decode()}).encode()


def entries_json(entries: list[bytes]) -> bytes:
    """The same of entries."""
    return json.dumps({"entries_base64": [base64.b64encode(raw).decode() for raw in entries]}).encode()
