"""Patch encoder and decoder: choice of codec, exact bytes, digests, sizes and damaged streams."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest

from p2prl.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from p2prl.patches.decode import PatchReader, apply_route, decode_segment
from p2prl.patches.encode import encode_patch, encode_segment
from p2prl.patches.exponent_classes import History
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.kernels import NUMPY_KERNELS, Kernels
from p2prl.patches.sparse_codec import decode_ec2, encode_ec2
from p2prl.patches.stream_format import (
    HEADER_BYTES,
    MAGIC,
    SEGMENT_WORDS,
    Codec,
    read_header,
    segment_spans,
    words_digest,
)
from p2prl.patches.words import BF16, FP32, Words
from p2prl_lab.bench.patch.simulated_training import adam_training, adam_versions, entropy_bits

KERNELS = {kernels.name: kernels for kernels in (NUMPY_KERNELS, fastest_kernels())}


@pytest.fixture(params=sorted(KERNELS))
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return KERNELS[request.param]


def test_body_byte_for_byte() -> None:
    old = np.full(40, 0x3C00, dtype=np.uint16)
    new = old.copy()
    new[[3, 9]] += 1
    header, body = encode_segment(old, new, BF16, NUMPY_KERNELS)
    assert header.codec is Codec.EC2
    # Top exponent 120, its class 15 alone, 2 changes; gaps 3 and 5: computed table of 6 intervals; both steps up, which
    # is symbol 0 alone, its level 49 no different. The powers of q = 38/40, in 2^31sts:
    beyond = [2**31, 38 * 2**31 // 40]
    beyond += [beyond[1] ** 2 // 2**31]
    beyond += [beyond[2] * beyond[1] // 2**31, beyond[2] ** 2 // 2**31]
    beyond += [beyond[4] * beyond[1] // 2**31]
    beyond += [beyond[5] * beyond[1] // 2**31]
    weights = [a - b for a, b in pairwise(beyond)]
    table = [1 + weight * 4090 // sum(weights) for weight in weights]
    table[0] += 4096 - sum(table)
    state = 1 << 16  # no field is hidden in it, since gaps and steps this short have none
    for interval in (5, 3):
        state = state // table[interval] * 4096 + state % table[interval] + sum(table[:interval])
    rest = state - (1 << (state.bit_length() - 1))
    states = bytes([state.bit_length() - 17]) + rest.to_bytes(-(-(state.bit_length() - 1) // 8), "little")
    assert body == bytes([120, 0, 0x80, 2, 128 + 6, 1, 7, 0]) + states
    assert len(header.pack()) == HEADER_BYTES
    assert read_header(header.pack(), 40, BF16) == header
    assert np.array_equal(decode_segment(old, header, body, BF16, NUMPY_KERNELS), new)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, Codec.EC2), (0.00002, Codec.EC2), (0.02, Codec.EC2), (1.0, Codec.RAW)]
)
def test_shortest_codec_wins(kernels: Kernels, share: float, expected: Codec) -> None:
    old, (new,) = adam_versions(1 << 19, 1e-6, 1, 5)
    rng = np.random.default_rng(6)
    if share == 1.0:
        new = rng.integers(0, 1 << 16, len(old), dtype=np.uint16)
    elif share < 0.02:
        new = old + (rng.random(len(old)) < share).astype(np.uint16)
    header, body = encode_segment(old, new, BF16, kernels)
    assert header.codec is expected
    assert np.array_equal(decode_segment(old, header, body, BF16, kernels), new)


def test_keyframe_uses_planes(kernels: Kernels) -> None:
    new, _ = adam_versions(1 << 19, 1e-6, 0, 7)
    old = np.zeros_like(new)
    header, body = encode_segment(old, new, BF16, kernels)
    assert header.codec is Codec.PLANES
    assert len(body) * 1.45 < new.nbytes
    assert np.array_equal(decode_segment(old, header, body, BF16, kernels), new)


@pytest.mark.parametrize(("learning_rate", "most_bits"), [(1e-6, 7.5), (3e-6, 6.7), (1e-5, 6.0)])
def test_patch_sizes(learning_rate: float, most_bits: float) -> None:
    old, (new,) = adam_versions(SEGMENT_WORDS, learning_rate, 1, 11)
    _, body = encode_segment(old, new, BF16, fastest_kernels())
    changes = int(np.count_nonzero(old != new))
    assert 8 * len(body) <= most_bits * changes
    assert 8 * (HEADER_BYTES + len(body)) <= 1.02 * entropy_bits(old, new)


@pytest.mark.parametrize("place", [0, 3 << 20, SEGMENT_WORDS - 1])
def test_one_change_anywhere_in_a_segment(kernels: Kernels, place: int) -> None:
    old = np.full(SEGMENT_WORDS, 0x3C00, dtype=np.uint16)
    new = old.copy()
    new[place] += 1
    header, body = encode_segment(old, new, BF16, kernels)
    assert len(body) < 24
    assert np.array_equal(decode_segment(old, header, body, BF16, kernels), new)


def test_one_patch_over_16_versions_is_smaller_than_16() -> None:
    old, versions = adam_versions(1 << 20, 1e-6, 16, 12)
    lengths = [len(encode_segment(a, b, BF16, fastest_kernels())[1]) for a, b in pairwise([old, *versions])]
    assert len(encode_segment(old, versions[-1], BF16, fastest_kernels())[1]) <= 0.45 * sum(lengths)


def test_wrong_base_or_result_is_an_integrity_error(kernels: Kernels) -> None:
    old, (new,) = adam_versions(5000, 1e-5, 1, 13)
    header, body = encode_segment(old, new, BF16, kernels)
    with pytest.raises(IntegrityError, match="base digest"):
        decode_segment(new, header, body, BF16, kernels)
    with pytest.raises(IntegrityError, match="do not match their digest"):
        decode_segment(old, replace(header, post=words_digest(old)), body, BF16, kernels)
    with pytest.raises(RemoteProtocolError, match="announced"):
        decode_segment(old, header, body + b"\0", BF16, kernels)


def test_misuse_is_a_local_error() -> None:
    old = np.zeros(10, dtype=np.uint16)
    for bad in (old[:9], old.astype(np.uint32), old.reshape(2, 5), np.zeros(SEGMENT_WORDS + 1, dtype=np.uint16)):
        with pytest.raises(LocalProtocolError):
            encode_segment(old, bad, BF16, NUMPY_KERNELS)


@pytest.mark.parametrize("damage", [{0: 9}, {1: 255, 2: 255}, {1: 0, 2: 0, 3: 0, 4: 0}])
def test_header_is_checked_first(damage: dict[int, int]) -> None:
    old, (new,) = adam_versions(1000, 1e-5, 1, 14)
    raw = bytearray(encode_segment(old, new, BF16, NUMPY_KERNELS)[0].pack())
    for place, byte in damage.items():
        raw[place] = byte
    with pytest.raises(RemoteProtocolError):
        read_header(bytes(raw), 1000, BF16)
    with pytest.raises(RemoteProtocolError):
        read_header(bytes(raw)[:-1], 1000, BF16)


def test_any_alignment_and_stride(kernels: Kernels) -> None:
    old, (new,) = adam_versions(3000, 1e-5, 1, 15)
    shifted = np.frombuffer(b"\0" + old.tobytes(), dtype=np.uint8)[1:].view(np.uint16)
    assert not shifted.flags.aligned
    strided = np.repeat(new, 2)[::2]
    header, body = encode_segment(shifted, strided, BF16, kernels)
    assert (header, body) == encode_segment(old, new, BF16, kernels)
    decoded = decode_segment(shifted, header, memoryview(b"\0" + body)[1:], BF16, kernels)
    assert np.array_equal(decoded, new)
    assert decoded.flags.writeable


def model_of_three_segments() -> tuple[Words, Words]:
    rng = np.random.default_rng(16)
    old = rng.integers(0, 1 << 16, 2 * SEGMENT_WORDS + 77, dtype=np.uint16)
    new = old.copy()
    new[rng.integers(0, len(new), 500)] += 1
    return old, new


def test_stream_in_pieces_of_any_size() -> None:
    old, new = model_of_three_segments()
    spans = segment_spans(len(old))
    assert [count for _, count in spans] == [SEGMENT_WORDS, SEGMENT_WORDS, 77]
    pairs = [(old[a : a + n], new[a : a + n]) for a, n in spans]
    sent = b"".join(encode_patch(pairs, words=len(old), word_type=BF16, kernels=NUMPY_KERNELS))
    size = len(sent) // 9 + 1
    pieces = [sent[i : i + size] for i in range(0, len(sent), size)]
    got = old.copy()
    for segment in apply_route(
        [pieces], lambda start, n: old[start : start + n], words=len(old), word_type=BF16, kernels=NUMPY_KERNELS
    ):
        got[segment.start : segment.start + len(segment.words)] = segment.words
        assert segment.digest == words_digest(segment.words)
    assert np.array_equal(got, new)
    reader = PatchReader(words=len(old), word_type=BF16)
    one_by_one = [segment for i in range(len(sent)) for segment in reader.receive(sent[i : i + 1])]
    assert reader.finished
    assert one_by_one == PatchReader(words=len(old), word_type=BF16).receive(sent)
    with pytest.raises(RemoteProtocolError, match="after the last"):
        reader.receive(b"x")


def test_foreign_or_short_stream_is_refused() -> None:
    old, (new,) = adam_versions(1000, 1e-5, 1, 17)
    sent = b"".join(encode_patch([(old, new)], words=1000, word_type=BF16, kernels=NUMPY_KERNELS))
    assert sent.startswith(MAGIC)
    for words, word_type in ((1001, BF16), (1000, FP32)):
        with pytest.raises(RemoteProtocolError, match="not this model"):
            PatchReader(words=words, word_type=word_type).receive(sent)
    with pytest.raises(RemoteProtocolError, match="format"):
        PatchReader(words=1000, word_type=BF16).receive(b"q" + sent[1:])
    with pytest.raises(RemoteProtocolError, match="complete weights are downloaded instead"):
        PatchReader(words=1000, word_type=BF16).receive(b"p2prl-patch-1\n" + sent[len(MAGIC) :])
    applied = apply_route([[sent[:-1]]], lambda *_: old, words=1000, word_type=BF16, kernels=NUMPY_KERNELS)
    with pytest.raises(RemoteProtocolError, match="too early"):
        list(applied)
    for pairs in ([], [(old[1:], new[1:])], [(old, new), (old, new)]):
        with pytest.raises(LocalProtocolError):
            list(encode_patch(pairs, words=1000, word_type=BF16, kernels=NUMPY_KERNELS))


def test_empty_patch() -> None:
    sent = list(encode_patch([], words=0, word_type=BF16, kernels=NUMPY_KERNELS))
    assert list(apply_route([sent], lambda *_: np.zeros(0), words=0, word_type=BF16, kernels=NUMPY_KERNELS)) == []


def test_numpy_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "p2prl.patches.numba_kernels", None)
    assert fastest_kernels.__wrapped__() is NUMPY_KERNELS
    monkeypatch.delitem(sys.modules, "p2prl.patches.numba_kernels")
    assert fastest_kernels.__wrapped__().name == "numba"


def test_history_makes_a_drifting_run_smaller() -> None:
    """Words that drift keep their direction, and who moved moves again."""
    versions = list(islice(adam_training(1 << 20, 3e-6, 18), 7))
    history = History.none(1 << 20)
    bits = bits_with = entropy = 0.0
    for old, new in pairwise(versions):
        body = encode_ec2(old, new, BF16, fastest_kernels(), history=history)
        plain = encode_ec2(old, new, BF16, fastest_kernels())
        assert np.array_equal(decode_ec2(old, memoryview(body), BF16, NUMPY_KERNELS, history=history), new)
        bits, bits_with = bits + 8 * len(plain), bits_with + 8 * len(body)
        entropy += entropy_bits(old, new)
        history = history.after(old, new, BF16)
    assert bits <= 1.02 * entropy
    assert bits_with < 0.99 * bits


def test_a_body_coded_with_another_history_does_not_decode_to_the_new_words() -> None:
    first, (old, new) = adam_versions(20_000, 1e-5, 2, 19)
    history = History.none(20_000).after(first, old, BF16)
    body = encode_ec2(old, new, BF16, NUMPY_KERNELS, history=history)
    for wrong in (None, History.none(20_000)):
        try:
            got = decode_ec2(old, memoryview(body), BF16, NUMPY_KERNELS, history=wrong)
        except RemoteProtocolError:
            continue
        assert not np.array_equal(got, new)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (bytes([255, 0, 0]), None),
        (bytes([120, 0, 0x80, 0]), "without changes"),
        (bytes([120, 0, 0x80, 41]), "exceeds"),
        (bytes([120, 0, 0x40, 1]), "exceeds"),  # no word is of class 14
        (bytes([120, 0, 0x80, 2, 128 + 6, 0]), "first table of steps"),
        (bytes([120, 0, 0x80, 2, 128 + 85, 1, 7]), "table of 213 symbols"),
        (bytes([120, 0, 0x80, 1, 1, 7, 1, 7, 3]), "exceeds"),  # two symbols take two units at most
        (bytes([120, 0, 0x80, 1, 1, 7, 1, 7, 2]), "too early"),
        (bytes([120, 0, 0]) + b"x", "too many"),
    ],
)
def test_impossible_bodies_are_refused(kernels: Kernels, body: bytes, problem: str | None) -> None:
    old = np.full(40, 0x3C00, dtype=np.uint16)
    if problem is None:
        assert np.array_equal(decode_ec2(old, memoryview(body), BF16, kernels), old)
        return
    with pytest.raises(RemoteProtocolError, match=problem):
        decode_ec2(old, memoryview(body), BF16, kernels)
