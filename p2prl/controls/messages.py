"""Requests to a running worker and its answers: one line of JSON each, bounded and checked against a schema.

Both ends belong to one user of one machine. The worker may still be in a stranger's hands, so its answers are data:
bounded, typed, and shown without control characters.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from p2prl.controls.limits import MOST_VALUE_CHARACTERS, SPECS
from p2prl.controls.owner_values import MOST_DURATION_S
from p2prl.errors import RemoteProtocolError

MOST_REQUEST_BYTES = 16 * 1024
"""All limits at once, each at its longest, fit."""

MOST_ANSWER_BYTES = 64 * 1024
"""A status with all limits, their origins and a sentence for each missing sensor has about 4 kB."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class PauseRequest(_Message, frozen=True, tag="pause"):
    """Free the engine's memory and sample nothing."""

    for_s: float | None = None
    """Until it resumes by itself; None: until it is told to."""
    keep_relaying: bool | None = None
    """Whether weights are still relayed; None: as the limit says."""


class ResumeRequest(_Message, frozen=True, tag="resume"):
    """End the pause."""


class FinishRequest(_Message, frozen=True, tag="finish"):
    """Complete the slots in flight and end."""


class StopRequest(_Message, frozen=True, tag="stop"):
    """End now; finished groups stay on disk."""


class StatusRequest(_Message, frozen=True, tag="status"):
    """Say what the worker does now."""


class LimitsRequest(_Message, frozen=True, tag="limits"):
    """Change limits, all or none."""

    changes: dict[str, str]


Request = PauseRequest | ResumeRequest | FinishRequest | StopRequest | StatusRequest | LimitsRequest


class LimitShown(_Message, frozen=True):
    """A limit in force."""

    value: str
    origin: str


class Answer(_Message, frozen=True):
    """What the worker does now, or why a request was refused."""

    error: str = ""
    """Empty when the request was obeyed."""
    remedy: str = ""
    state: str = "starting"
    """`starting`, `working`, `slowed`, `paused`, `resting`, `ending`."""
    reason: str = ""
    """Why it is not at full speed."""
    until: float | None = None
    """Unix time at which a pause ends by itself."""
    duty: float = 1.0
    """Share of the time the engine computes."""
    relays: bool = True
    """Whether the network is in use."""
    followed: bool = True
    """False while it still frees its memory, leaves the network or comes back."""
    engine_bytes: int | None = None
    """Memory the engine holds; None where it cannot be told."""
    limits: dict[str, LimitShown] = {}
    unread: list[str] = []
    """A sentence for each limit that is set and cannot be kept here."""


_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_answers = msgspec.json.Decoder(Answer)
_T = TypeVar("_T")


def encode_line(message: Request | Answer) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def read_request(line: bytes) -> Request:
    """A request of at most `MOST_REQUEST_BYTES`. `RemoteProtocolError` for anything else."""
    request: Request = _read(line, MOST_REQUEST_BYTES, _requests)
    if isinstance(request, PauseRequest) and request.for_s is not None and not 0 < request.for_s <= MOST_DURATION_S:
        raise RemoteProtocolError(f"a pause of {request.for_s:g} s is not within a year")
    if isinstance(request, LimitsRequest) and (
        len(request.changes) > len(SPECS)
        or any(len(text) > MOST_VALUE_CHARACTERS for pair in request.changes.items() for text in pair)
    ):
        raise RemoteProtocolError("too many limits, or one that is too long")
    return request


def read_answer(line: bytes) -> Answer:
    """An answer of at most `MOST_ANSWER_BYTES`. `RemoteProtocolError` for anything else."""
    return _read(line, MOST_ANSWER_BYTES, _answers)


def _read(line: bytes, most_bytes: int, decoder: msgspec.json.Decoder[_T]) -> _T:
    if len(line) > most_bytes:
        raise RemoteProtocolError(f"a message of {len(line)} bytes is above {most_bytes}")
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a control message: {error}") from error
