"""Frames: round trips of every text, and replies from a hostile process that are refused whatever they hold."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import RemoteProtocolError
from p2prl.tasks.sandbox import frames
from p2prl.tasks.sandbox.frames import Reply
from p2prl.tasks.score_bound import MAX_SCORE

ANY_TEXT = st.text(st.characters(categories=None, exclude_categories=()))  # surrogates and NULs included
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(ANY_TEXT, JSON, max_size=3), st.lists(st.tuples(ANY_TEXT, st.booleans()), max_size=4))
def test_requests_round_trip(row: dict[str, Any], answers: list[tuple[str, bool]]) -> None:
    data = frames.request_frame("tâsk", frames.json_bytes(row), answers, 0.25)
    assert frames.payload_bytes(data[: frames.HEADER_BYTES]) == len(data) - frames.HEADER_BYTES
    assert frames.read_request(data[frames.HEADER_BYTES :]) == ("tâsk", 0.25, answers, row)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_bytes_are_a_legal_reply_or_refused(data: bytes, expected: int) -> None:
    head, rest = data[: frames.REPLY_BYTES], data[frames.REPLY_BYTES :]
    if len(head) < frames.REPLY_BYTES:
        return
    try:
        told = rest[: frames.rest_bytes(head)]
        reply = frames.read_reply(head + told, expected=expected)
    except RemoteProtocolError:
        return
    assert reply.number == expected
    assert abs(reply.value) <= MAX_SCORE
    assert all(part is None or abs(part) <= frames.MAX_PART for part in reply.parts)
    assert reply.error.isascii()
    assert reply.error.isprintable() or not reply.error


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(range(4)),
    st.floats(-100, 100),
    st.text(max_size=300),
    st.lists(st.none() | st.floats(-10_000, 10_000), max_size=frames.MAX_PARTS),
)
def test_replies_round_trip(number: int, kind: int, value: float, error: str, parts: list[float | None]) -> None:
    data = frames.reply_bytes(Reply(number, kind, value, error, tuple(parts)))
    assert len(data) == frames.REPLY_BYTES + frames.rest_bytes(data[: frames.REPLY_BYTES])
    reply = frames.read_reply(data, expected=number)
    assert (reply.number, reply.kind) == (number, kind)
    assert reply.value == (value if kind == frames.SCORED else 0.0)
    assert reply.parts == (tuple(parts) if kind == frames.SCORED else ())
    assert len(reply.error) <= frames.MAX_ERROR_BYTES


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 100.5, -100.5])
def test_values_that_are_no_score_are_refused(value: float) -> None:
    with pytest.raises(RemoteProtocolError, match="without a score"):
        frames.read_reply(struct.pack("<IBdBB", 3, frames.SCORED, value, 0, 0), expected=3)


@pytest.mark.parametrize("part", [float("inf"), -float("inf"), 10_000.5])
def test_parts_that_no_score_has_are_refused(part: float) -> None:
    with pytest.raises(RemoteProtocolError, match="without a score"):
        frames.read_reply(struct.pack("<IBdBBd", 3, frames.SCORED, 1.0, 0, 1, part), expected=3)


@pytest.mark.parametrize(("number", "kind"), [(2, 0), (4, 0), (3, 4), (3, 255)])
def test_replies_to_other_answers_and_of_other_kinds_are_refused(number: int, kind: int) -> None:
    with pytest.raises(RemoteProtocolError, match="not the reply"):
        frames.read_reply(struct.pack("<IBdBB", number, kind, 1.0, 0, 0), expected=3)


def test_long_frames_and_long_errors_are_refused_before_they_are_read() -> None:
    assert frames.payload_bytes(struct.pack("<I", frames.MAX_FRAME_BYTES)) == frames.MAX_FRAME_BYTES
    with pytest.raises(RemoteProtocolError):
        frames.payload_bytes(struct.pack("<I", frames.MAX_FRAME_BYTES + 1))
    most = struct.pack("<IBdBB", 0, 1, 0.0, frames.MAX_ERROR_BYTES, frames.MAX_PARTS)
    assert frames.rest_bytes(most) == frames.MAX_ERROR_BYTES + 8 * frames.MAX_PARTS
    for beyond in ((frames.MAX_ERROR_BYTES + 1, 0), (0, frames.MAX_PARTS + 1)):
        with pytest.raises(RemoteProtocolError):
            frames.rest_bytes(struct.pack("<IBdBB", 0, 1, 0.0, *beyond))
    with pytest.raises(ValueError, match="a frame of"):
        frames.frame(bytes(frames.MAX_FRAME_BYTES + 1))


def test_control_characters_of_an_error_do_not_reach_a_terminal() -> None:
    data = struct.pack("<IBdBB", 0, frames.FAILED, 0.0, 5, 0) + b"\x1b[2Jx"
    assert frames.read_reply(data, expected=0).error == "?[2Jx"
