"""Frames on the pipes between a pool and its workers: requests as JSON with a length, replies of a fixed layout.

A reply may come from a process that a stranger's text controls, so it is read as four numbers and a short text whose
length is bounded, never parsed. Texts are UTF-8 that may hold lone surrogates, as Python's strings may.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from p2prl.errors import RemoteProtocolError
from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.score_bound import MAX_SCORE

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""A request: a row and the answers that `answer_queue` puts into one job."""

MAX_ERROR_BYTES = 200
"""Text of a scorer's error in a reply: enough for an exception's name and its first line."""

READY = struct.Struct("<cI")
"""Sent once by a worker that is confined and waits for requests, before it has seen any: `R` and its process id."""

SCORED, FAILED, OUT_OF_MEMORY, NOT_A_SCORE = range(4)
"""Kinds of reply."""

_LENGTH = struct.Struct("<I")
_REPLY = struct.Struct("<IBdB")

REPLY_BYTES = _REPLY.size
"""Bytes of a reply before its error text."""

_ENCODING, _SURROGATES = "utf-8", "surrogatepass"


@dataclass(frozen=True)
class Reply:
    """A worker's reply for one answer."""

    number: int
    """Position of the answer in its request."""
    kind: int
    value: float
    error: str = ""


def json_bytes(document: object) -> bytes:
    """JSON in UTF-8. `ValueError` or `RecursionError` for what is no JSON or is nested too deeply."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(_ENCODING, _SURROGATES)


def json_document(data: bytes) -> object:
    """The document of `json_bytes`."""
    return json.loads(data.decode(_ENCODING, _SURROGATES))


def frame(payload: bytes) -> bytes:
    """Payload with its length. `ValueError` when it is too long."""
    if len(payload) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(payload)} bytes")
    return _LENGTH.pack(len(payload)) + payload


def payload_bytes(header: bytes) -> int:
    """Length of the payload after this header. `RemoteProtocolError` when it is too long."""
    length = int(_LENGTH.unpack(header)[0])
    if length > MAX_FRAME_BYTES:
        raise RemoteProtocolError(f"a frame of {length} bytes")
    return length


HEADER_BYTES = _LENGTH.size
"""Bytes of a frame before its payload."""


def request_frame(task: str, row: bytes, answers: Sequence[tuple[str, bool]], limit_s: float) -> bytes:
    """A request to score answers to one row (`row` is JSON already)."""
    head = json_bytes([task, limit_s, [[text, finished] for text, finished in answers]])
    return frame(head[:-1] + b"," + row + b"]")


def read_request(payload: bytes) -> tuple[str, float, list[tuple[str, bool]], Row]:
    """Task, seconds for one answer, answers and row of a request. It comes from the pool, so it is not checked."""
    document: Any = json_document(payload)
    task, limit_s, answers, row = document
    return task, limit_s, [(text, finished) for text, finished in answers], row


def reply_bytes(reply: Reply) -> bytes:
    """A reply as bytes; the error text is cut."""
    error = reply.error.encode("ascii", "replace")[:MAX_ERROR_BYTES]
    return _REPLY.pack(reply.number, reply.kind, reply.value, len(error)) + error


def error_bytes(head: bytes) -> int:
    """Bytes of error text after these `REPLY_BYTES`. `RemoteProtocolError` when there are too many."""
    length = int(_REPLY.unpack(head)[3])
    if length > MAX_ERROR_BYTES:
        raise RemoteProtocolError(f"a reply with {length} bytes of text")
    return length


def read_reply(data: bytes, *, expected: int) -> Reply:
    """Decode and check a reply. `RemoteProtocolError` for one to another answer, of no kind, or with no legal score."""
    number, kind, value, length = _REPLY.unpack_from(data)
    if number != expected or kind > NOT_A_SCORE or len(data) != REPLY_BYTES + length:
        raise RemoteProtocolError("not the reply to this answer")
    if not is_score(value):
        raise RemoteProtocolError("a reply without a score")
    text = "".join(c if c.isprintable() else "?" for c in data[REPLY_BYTES:].decode("ascii", "replace"))
    return Reply(number, kind, value if kind == SCORED else 0.0, text)


def is_score(value: float) -> bool:
    """Whether a number may be a score: finite and not too large."""
    return math.isfinite(value) and abs(value) <= MAX_SCORE
