"""Control messages: whatever is not exactly one of them is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.controls import messages
from p2prl.controls.limits import SPECS
from p2prl.controls.messages import MOST_REQUEST_BYTES, Answer, encode_line, read_answer, read_request
from p2prl.errors import RemoteProtocolError

REQUESTS: list[messages.Request] = [
    messages.PauseRequest(),
    messages.PauseRequest(for_s=7_200.0, keep_relaying=True),
    messages.ResumeRequest(),
    messages.FinishRequest(),
    messages.StopRequest(),
    messages.StatusRequest(),
    messages.LimitsRequest(changes={"gpu.temp": "75C"}),
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_requests_survive_the_wire(request_: messages.Request) -> None:
    line = encode_line(request_)
    assert line.count(b"\n") == 1
    assert read_request(line[:-1]) == request_


def test_an_answer_survives_the_wire() -> None:
    answer = Answer(state="paused", limits={"ram": messages.LimitShown(value="8GB", origin="file")}, unread=["no"])
    assert read_answer(encode_line(answer)[:-1]) == answer


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b'{"type":"reboot"}',
        b'{"type":"pause","for_s":-1}',
        b'{"type":"pause","for_s":0}',
        b'{"type":"pause","for_s":1e99}',
        b'{"type":"pause","for_s":"2h"}',
        b'{"type":"pause","shell":"rm"}',
        b'{"type":"limits"}',
        b'{"type":"limits","changes":{"ram":8}}',
        b'{"type":"limits","changes":{"ram":"' + b"8" * 401 + b'"}}',
        b'{"type":"limits","changes":{' + b",".join(b'"%d":""' % n for n in range(len(SPECS) + 1)) + b"}}",
        b'{"type":"resume"}' + b" " * MOST_REQUEST_BYTES,
        b"[" * 10_000,
        b'{"type":"\xff"}',
    ],
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_request(line)


@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_refused(line: bytes) -> None:
    for read in (read_request, read_answer):
        with suppress(RemoteProtocolError):
            read(line)
