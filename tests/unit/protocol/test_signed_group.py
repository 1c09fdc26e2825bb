"""Groups in one envelope or as a header with a body: which form, what the signature covers, and the size limits."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.envelope import envelope_digest, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.protocol.manifests import BlobRef, blob_of
from p2prl.protocol.rollout_group import (
    Completion,
    EngineClass,
    GroupHeader,
    RolloutGroup,
    check_group_size,
    largest_group_bytes,
)
from p2prl.protocol.signed_group import assemble_group, read_group, seal_group
from p2prl.protocol.wire_codec import encode
from p2prl_lab.testing.protocol_swarm import group_of

ME, RUN, NOW = Identity(b"m" * 16), bytes(32), 1_800_000_000.0
PART = limits.GROUP_PART_BYTES


def group_with(completions: int, tokens: int) -> RolloutGroup:
    one = Completion(bytes(4 * tokens), bytes(2 * tokens), finished=False, reward=0.5)
    return msgspec.structs.replace(group_of(3), completions=(one,) * completions)


def sealed(group: RolloutGroup) -> tuple[bytes, bytes]:
    return seal_group(ME, group, run=RUN, now=NOW)


LARGE = group_with(3, 30_000)
HEADER, BODY = sealed(LARGE)


def test_a_group_that_fits_is_sealed_as_ever() -> None:
    raw, body = sealed(group_of(3))
    assert (raw, body) == (seal(ME, group_of(3), run=RUN, now=NOW), b"")
    assert read_group(raw).group == group_of(3)


def test_the_form_changes_exactly_at_the_largest_envelope() -> None:
    base = len(seal(ME, group_with(2, 20_000), run=RUN, now=NOW))
    room = limits.MAX_ENVELOPE_BYTES - base
    for extra, kind in ((room - room % 6, Kind.ROLLOUT_GROUP), (room - room % 6 + 6, Kind.GROUP_HEADER)):
        one = group_with(1, 20_000).completions[0]
        longer = Completion(
            one.tokens + bytes(4 * (extra // 6)), one.logprobs + bytes(2 * (extra // 6)), finished=False, reward=0.5
        )
        raw, body = sealed(msgspec.structs.replace(group_with(2, 20_000), completions=(one, longer)))
        assert open_envelope(raw, now=NOW).kind is kind
        assert bool(body) == (kind is Kind.GROUP_HEADER)
        assert len(read_group(raw, body).group.completions) == 2, "either side of the limit is legal"


def test_header_and_body_give_the_group_under_the_headers_name() -> None:
    signed = read_group(HEADER, BODY)
    assert signed.group == LARGE
    assert signed.digest == envelope_digest(HEADER)
    assert signed.author == ME.public_key
    assert signed.size_bytes == len(HEADER) + len(BODY)
    assert len(HEADER) < 1_000


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body[:-1],
        lambda body: body + b"\x00",
        lambda body: b"",
        lambda body: body[:PART] + bytes([body[PART] ^ 1]) + body[PART + 1 :],
        lambda body: body[PART:] + body[:PART],
    ],
)
def test_another_body_is_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(RemoteProtocolError, match="not the body"):
        read_group(HEADER, change(BODY))


@pytest.mark.parametrize("changes", [{"slot": 4}, {"version": 1}, {"policy": b"x" * 32}])
def test_a_body_of_another_slot_is_refused(changes: dict[str, object]) -> None:
    header = open_envelope(HEADER, now=NOW).body
    assert isinstance(header, GroupHeader)
    raw = seal(ME, msgspec.structs.replace(header, **changes), run=RUN, now=NOW)
    with pytest.raises(RemoteProtocolError, match="slot that its header states"):
        read_group(raw, BODY)


def test_the_values_inside_a_body_are_checked() -> None:
    for body in (encode(msgspec.structs.replace(LARGE, task="")), bytes(300_000)):
        header = GroupHeader(0, bytes(32), 3, blob_of(body, PART))
        with pytest.raises(RemoteProtocolError):
            read_group(seal(ME, header, run=RUN, now=NOW), body)


def test_an_envelope_of_another_kind_is_no_group() -> None:
    with pytest.raises(RemoteProtocolError):
        assemble_group(open_envelope(seal(ME, blob_header(), run=RUN, now=NOW), now=NOW), b"")


def blob_header(size: int = 300_000, chunk: int = PART, **changes: object) -> GroupHeader:
    ref = BlobRef(size, chunk, bytes(32))
    return msgspec.structs.replace(GroupHeader(0, bytes(32), 0, ref), **changes)


def test_header_limits() -> None:
    smallest = limits.MAX_ENVELOPE_BYTES - 255
    for legal in (blob_header(), blob_header(smallest), blob_header(limits.MAX_GROUP_BYTES)):
        legal.check()
        assert len(seal(ME, legal, run=RUN, now=NOW)) < 400
    illegal = [
        blob_header(smallest - 1),
        blob_header(limits.MAX_GROUP_BYTES + 1),
        blob_header(chunk=2 * PART),
        blob_header(chunk=PART // 2),
        blob_header(version=-1),
        blob_header(version=1 << 48),
        blob_header(slot=1 << 32),
        blob_header(policy=bytes(31)),
        blob_header(body=BlobRef(300_000, PART, (bytes(32),) * 4)),
        blob_header(body=BlobRef(300_000, PART, (bytes(32), bytes(32), bytes(31)))),
        blob_header(body=BlobRef(300_000, PART, bytes(31))),
    ]
    for header in illegal:
        with pytest.raises(RemoteProtocolError):
            header.check()


def test_no_group_of_a_run_is_larger_than_its_bound() -> None:
    """The bound is an upper one for every legal group, and close: a run's limit must mean something."""
    wide = "\U0001f600" * limits.MAX_NAME_CHARS
    for completions, tokens in ((1, 1), (64, 1), (64, 300), (1, 32_768), (3, 30_000)):
        group = msgspec.structs.replace(
            group_with(completions, tokens),
            version=(1 << 48) - 1,
            slot=(1 << 32) - 1,
            task=wide,
            prompt=bytes(4 * limits.MAX_PROMPT_TOKENS),
            engine=EngineClass(wide, wide, wide, wide),
        )
        size = len(encode(group))
        assert size <= largest_group_bytes(completions, tokens) <= size + 1_000 + 16 * completions
    assert largest_group_bytes(limits.MAX_GROUP_SIZE, limits.MAX_COMPLETION_TOKENS) <= limits.MAX_GROUP_BYTES


def test_a_group_larger_than_its_run_allows_is_refused() -> None:
    header = open_envelope(HEADER, now=NOW).body
    assert isinstance(header, GroupHeader)
    check_group_size(header, envelope_bytes=len(HEADER), most=len(BODY))
    with pytest.raises(RemoteProtocolError, match="sampling settings allow"):
        check_group_size(header, envelope_bytes=len(HEADER), most=len(BODY) - 1)
    small = group_with(4, 2_000)
    raw = sealed(small)[0]
    check_group_size(small, envelope_bytes=len(raw), most=len(encode(small)))
    with pytest.raises(RemoteProtocolError, match="sampling settings allow"):
        check_group_size(small, envelope_bytes=len(raw), most=len(encode(small)) - 256)


def test_evidence_is_sized_by_the_tokens() -> None:
    tokens = sum(len(completion.tokens) // 4 for completion in group_of(0).completions)
    msgspec.structs.replace(group_of(0), evidence=bytes(16 * tokens)).check()
    with pytest.raises(RemoteProtocolError, match="evidence"):
        msgspec.structs.replace(group_of(0), evidence=bytes(16 * tokens + 1)).check()
