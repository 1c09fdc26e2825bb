"""Frames on the pipes between a pool and its workers: requests as JSON with a length, replies of a fixed layout.

A reply may come from a process that a stranger's text controls, so it is read as numbers and a short text, of which
there may be few, never parsed. Texts are UTF-8 that may hold lone surrogates, as Python's strings may.
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

MAX_PARTS = 16
"""Scorers of a sum, whose parts of an answer's score are told beside it."""

MAX_PART = MAX_SCORE * MAX_SCORE
"""Largest magnitude of a part: a score times a weight."""

MAX_ERROR_BYTES = 200
"""Text of a scorer's error in a reply: enough for an exception's name and its first line."""

READY = struct.Struct("<cI")
"""Sent once by a worker that is confined and waits for requests, before it has seen any: `R` and its process id."""

SCORED, FAILED, OUT_OF_MEMORY, NOT_A_SCORE = range(4)
"""Kinds of reply."""

_LENGTH = struct.Struct("<I")
_REPLY = struct.Struct("<IBdBB")
_PART_BYTES = 8

REPLY_BYTES = _REPLY.size
"""Bytes of a reply before its parts and its error text."""

_ENCODING, _SURROGATES = "utf-8", "surrogatepass"


@dataclass(frozen=True)
class Reply:
    """A worker's reply for one answer."""

    number: int
    """Position of the answer in its request."""
    kind: int
    value: float
    error: str = ""
    parts: tuple[float | None, ...] = ()
    """What each scorer of a sum added to the value, None for no score; none where the scorer is no sum."""


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
    parts = [math.nan if part is None else part for part in reply.parts[:MAX_PARTS]]
    head = _REPLY.pack(reply.number, reply.kind, reply.value, len(error), len(parts))
    return head + struct.pack(f"<{len(parts)}d", *parts) + error


def rest_bytes(head: bytes) -> int:
    """Bytes of parts and error text after these `REPLY_BYTES`. `RemoteProtocolError` when there are too many."""
    length, parts = (int(count) for count in _REPLY.unpack(head)[3:])
    if length > MAX_ERROR_BYTES or parts > MAX_PARTS:
        raise RemoteProtocolError(f"a reply with {length} bytes of text and {parts} parts")
    return length + _PART_BYTES * parts


def read_reply(data: bytes, *, expected: int) -> Reply:
    """Decode and check a reply. `RemoteProtocolError` for one to another answer, of no kind, or with no legal score."""
    number, kind, value, _, count = _REPLY.unpack_from(data)
    if number != expected or kind > NOT_A_SCORE or len(data) != REPLY_BYTES + rest_bytes(data[:REPLY_BYTES]):
        raise RemoteProtocolError("not the reply to this answer")
    parts = struct.unpack_from(f"<{count}d", data, REPLY_BYTES)
    if not is_score(value) or not all(math.isnan(part) or abs(part) <= MAX_PART for part in parts):
        raise RemoteProtocolError("a reply without a score")
    told = data[REPLY_BYTES + _PART_BYTES * count :].decode("ascii", "replace")
    text = "".join(c if c.isprintable() else "?" for c in told)
    if kind != SCORED:
        return Reply(number, kind, 0.0, text)
    return Reply(number, kind, value, text, tuple(None if math.isnan(part) else part for part in parts))


def is_score(value: float) -> bool:
    """Whether a number may be a score: finite and not too large."""
    return math.isfinite(value) and abs(value) <= MAX_SCORE
