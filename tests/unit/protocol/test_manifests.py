"""Blobs, run manifests and policy manifests: limits, digests and impossible values."""

from __future__ import annotations

import math

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.hash_tree import proof_among
from p2prl.protocol.identity import Identity
from p2prl.protocol.link_messages import Chunk, Have
from p2prl.protocol.manifests import (
    NO_BASE,
    BlobRef,
    DataSet,
    Patch,
    PolicyManifest,
    RunFile,
    RunManifest,
    Sampling,
    TaskShare,
    TensorSpec,
    blob_of,
    chunk_bytes_for,
    layout_digest,
    tree_of,
)
from p2prl.protocol.run_file_names import RUN_FILE_NAMES
from p2prl.protocol.wire_codec import decode, encode
from p2prl.sim.bare_manifest import run_manifest_of

RUN = run_manifest_of(Identity(bytes(16)))
REF = blob_of(bytes(10_000), 4096)
SMALL = blob_of(bytes(5_000), 4096)
PATCHES = (Patch(2, bytes(32), SMALL), Patch(NO_BASE, b"", SMALL))
POLICY = PolicyManifest(3, 5, REF, bytes(32), bytes(32), bytes(32), 0, PATCHES)


def listed(data: bytes, chunk_bytes: int) -> BlobRef:
    """A blob as documents of wire versions below 7 name it."""
    starts = range(0, len(data), chunk_bytes)
    return BlobRef(len(data), chunk_bytes, tuple(blake3(data[at : at + chunk_bytes]).digest() for at in starts))


LISTED = listed(bytes(10_000), 4096)
NAMES = LISTED.tree


@given(st.binary(min_size=1, max_size=40_000), st.sampled_from([4096, 8192, 16384]))
def test_chunks_cover_the_blob(data: bytes, chunk_bytes: int) -> None:
    ref = blob_of(data, chunk_bytes)
    ref.check(max_bytes=len(data))
    pieces = [data[start : start + size] for start, size in map(ref.span, range(ref.total))]
    assert b"".join(pieces) == data
    assert listed(data, chunk_bytes).tree_hash == ref.tree


def test_root_depends_on_size_chunks_and_content() -> None:
    roots = {blob_of(data, size).root for data in (bytes(9000), bytes(9001), b"\1" * 9000) for size in (4096, 8192)}
    assert len(roots) == 6


@pytest.mark.parametrize(
    "ref",
    [
        BlobRef(0, 4096, ()),
        BlobRef(-1, 4096, ()),
        BlobRef(0, 4096, bytes(32)),
        BlobRef(10_001, 4096, REF.tree),
        BlobRef(10_000, 4095, REF.tree),
        BlobRef(10_000, limits.MAX_CHUNK_BYTES + 1, REF.tree),
        BlobRef(10_000, 0, REF.tree),
        BlobRef(10_000, 4096, bytes(31)),
        BlobRef(10_000, 4096, b""),
        BlobRef(10_000, 4096, NAMES[:2]),
        BlobRef(10_000, 4096, (*NAMES, bytes(32))),
        BlobRef(10_000, 4096, (*NAMES[:2], bytes(31))),
        BlobRef(4096 * limits.MAX_CHUNKS + 1, 4096, bytes(32)),
    ],
)
def test_impossible_blobs_are_refused(ref: BlobRef) -> None:
    with pytest.raises(RemoteProtocolError):
        ref.check(max_bytes=10_000 if ref.size_bytes <= 10_001 else 1 << 50)


def test_blob_limits() -> None:
    BlobRef(4096 * limits.MAX_CHUNKS, 4096, bytes(32)).check(max_bytes=1 << 40)
    LISTED.check(max_bytes=10_000)
    REF.check(max_bytes=10_000)
    with pytest.raises(RemoteProtocolError):
        REF.check(max_bytes=9_999)


@pytest.mark.parametrize(
    ("size", "pieces", "chunk"),
    [
        (1, 256, 4096),
        (100_000, 256, 4096),  # 32 pieces would have 3 KB
        (240 * 1024, 256, 8192),  # 32 pieces while they are small
        (1 << 20, 256, 32_768),
        (2 << 20, 256, 65_536),
        (16 << 20, 256, 65_536),  # 64 KiB each, 256 of them
        (64 << 20, 256, 262_144),
        (1 << 30, 256, 4 << 20),
        (23 << 30, 256, 4 << 20),  # the largest chunk
        (64 << 20, 32, 2 << 20),
        (1 << 20, 4, 262_144),
    ],
)
def test_chunk_size(size: int, pieces: int, chunk: int) -> None:
    assert chunk_bytes_for(size, pieces=pieces) == chunk


@given(st.integers(1, limits.MAX_WEIGHT_BYTES), st.integers(1, 4096))
def test_a_chunk_is_a_power_of_two_within_the_limits(size: int, pieces: int) -> None:
    chosen = chunk_bytes_for(size, pieces=pieces)
    assert chosen & (chosen - 1) == 0
    assert limits.MIN_CHUNK_BYTES <= chosen <= limits.MAX_CHUNK_BYTES
    if chosen < limits.MAX_CHUNK_BYTES:
        assert size / chosen <= pieces * 2**0.5
    if size >= 32 * 64 * 1024:
        assert chosen >= 64 * 1024


DATA = DataSet(RUN.tasks[0].task, 7, REF, SMALL, '{"rewards":[]}')


def sized(size_bytes: int) -> BlobRef:
    """A blob of a size, in the largest chunks."""
    return BlobRef(size_bytes, limits.MAX_CHUNK_BYTES, bytes(32))


def prompts_of(rows: int, tokens: int) -> int:
    """Bytes of the packed prompts of so many rows."""
    return 16 + 8 * (rows + 1) + 4 * rows * tokens


def answers_of(rows: int) -> int:
    """Bytes of the packed answers of so many rows, each of which is an empty object."""
    return 16 + 8 * (rows + 1) + 2 * rows


def test_data_sets() -> None:
    most, code = limits.MAX_DATA_BYTES, limits.MAX_SCORER_CODE_BYTES
    least_answers = sized(answers_of(10**6))
    for good in (
        DATA,
        msgspec.structs.replace(DATA, rows=1),
        msgspec.structs.replace(DATA, held_out=bytes(32), code=sized(code)),
        msgspec.structs.replace(DATA, prompts=sized(prompts_of(7, 1))),
        msgspec.structs.replace(DATA, prompts=sized(prompts_of(7, limits.MAX_PROMPT_TOKENS))),
        msgspec.structs.replace(DATA, answers=sized(answers_of(7))),
        msgspec.structs.replace(DATA, rows=10**6, prompts=sized(most - answers_of(10**6)), answers=least_answers),
        msgspec.structs.replace(DATA, answers=sized(most - REF.size_bytes)),
        msgspec.structs.replace(DATA, scoring="s" * limits.MAX_SCORING_CHARS),
    ):
        msgspec.structs.replace(RUN, data_sets=(good,), prompt_frame=("x" * limits.MAX_TEXT_CHARS, "")).check()


@pytest.mark.parametrize(
    "changes",
    [
        {"task": ""},
        {"task": "t" * (limits.MAX_NAME_CHARS + 1)},
        {"task": "a\n"},
        {"rows": 0},
        {"rows": limits.MAX_DATA_ROWS + 1},
        {"rows": 10**6, "prompts": sized(limits.MAX_DATA_BYTES + 1), "answers": sized(answers_of(10**6))},
        {"answers": sized(limits.MAX_DATA_BYTES + 1)},
        {"prompts": sized(prompts_of(7, 1) - 1)},
        {"prompts": sized(prompts_of(7, limits.MAX_PROMPT_TOKENS) + 1)},
        {"answers": sized(answers_of(7) - 1)},
        {"prompts": BlobRef(10_000, 4096, ())},
        {"code": sized(limits.MAX_SCORER_CODE_BYTES + 1)},
        {"scoring": ""},
        {"scoring": "s" * (limits.MAX_SCORING_CHARS + 1)},
        {"scoring": "a\nb"},
        {"held_out": bytes(31)},
    ],
)
def test_impossible_data_sets_are_refused(changes: dict[str, object]) -> None:
    DATA.check()
    with pytest.raises(RemoteProtocolError):
        msgspec.structs.replace(DATA, **changes).check()


def test_data_sets_are_bounded_together() -> None:
    most = limits.MAX_DATA_BYTES
    fits = msgspec.structs.replace(
        DATA, rows=10**6, prompts=sized(most - answers_of(10**6) + 1), answers=sized(answers_of(10**6))
    )
    fits.check()
    with pytest.raises(RemoteProtocolError, match="together"):
        msgspec.structs.replace(RUN, data_sets=(fits,)).check()


def test_a_run_manifest_of_an_earlier_release_decodes() -> None:
    """Its fields end before those of data."""
    fields = msgspec.msgpack.decode(encode(RUN))
    old = decode(msgspec.msgpack.encode(fields[:-2]), RunManifest, limit_bytes=limits.MAX_ENVELOPE_BYTES)
    assert old == RUN
    assert (old.data_sets, old.prompt_frame, old.turn_frame) == ((), ("", ""), ("", ""))
    with_data = msgspec.structs.replace(RUN, data_sets=(DATA,), prompt_frame=("a", "b"))
    assert decode(encode(with_data), RunManifest, limit_bytes=limits.MAX_ENVELOPE_BYTES) == with_data


def replaced(**changes: object) -> dict[str, object]:
    return changes


@pytest.mark.parametrize(
    "changes",
    [
        replaced(name=""),
        replaced(name="n" * (limits.MAX_NAME_CHARS + 1)),
        replaced(goal="\x1b[31m"),
        replaced(licence="l" * (limits.MAX_TEXT_CHARS + 1)),
        replaced(learner=bytes(31)),
        replaced(parameters=0),
        replaced(parameters=limits.MAX_WEIGHT_BYTES // 4 + 1, dtype="float32"),
        replaced(layout=b""),
        replaced(tokenizer=bytes(33)),
        replaced(dtype="int4"),
        replaced(files=(RunFile("model.py", REF),)),
        replaced(files=(RunFile("../config.json", REF),)),
        replaced(files=(RunFile("config.json", REF),) * 2),
        replaced(files=(RunFile("config.json", BlobRef(limits.MAX_RUN_FILE_BYTES + 1, 4096, REF.tree)),)),
        replaced(tasks=()),
        replaced(tasks=(TaskShare("", 1.0),)),
        replaced(tasks=(TaskShare("t" * (limits.MAX_NAME_CHARS + 1), 1.0),)),
        replaced(tasks=(TaskShare("a", 1.0), TaskShare("a", 1.0))),
        replaced(tasks=(TaskShare("a\n", 1.0),)),
        replaced(tasks=(TaskShare("a", math.nan),)),
        replaced(tasks=(TaskShare("a", math.inf),)),
        replaced(tasks=(TaskShare("a", 0.0),)),
        replaced(tasks=(TaskShare("a", 1e300),)),
        replaced(tasks=tuple(TaskShare(str(i), 1.0) for i in range(limits.MAX_TASKS + 1))),
        replaced(sampling=Sampling(1.0, 8, 0)),
        replaced(sampling=Sampling(1.0, 8, limits.MAX_GROUP_SIZE + 1)),
        replaced(sampling=Sampling(1.0, 0, 4)),
        replaced(sampling=Sampling(1.0, limits.MAX_COMPLETION_TOKENS + 1, 4)),
        replaced(sampling=Sampling(0.0099, 8, 4)),
        replaced(sampling=Sampling(100.1, 8, 4)),
        replaced(sampling=Sampling(math.nan, 8, 4)),
        replaced(staleness_bound=-1),
        replaced(staleness_bound=limits.MAX_STALENESS + 1),
        replaced(publish_every=0),
        replaced(publish_every=limits.MAX_STALENESS + 1),
        replaced(data_sets=(DATA, DATA)),
        replaced(data_sets=(msgspec.structs.replace(DATA, task="other"),)),
        replaced(data_sets=(msgspec.structs.replace(DATA, rows=0),)),
        replaced(prompt_frame=("x" * (limits.MAX_TEXT_CHARS + 1), "")),
        replaced(prompt_frame=("", "x" * (limits.MAX_TEXT_CHARS + 1))),
        replaced(turn_frame=("x" * (limits.MAX_TEXT_CHARS + 1), "")),
        replaced(turn_frame=("", "x" * (limits.MAX_TEXT_CHARS + 1))),
    ],
)
def test_impossible_run_manifests_are_refused(changes: dict[str, object]) -> None:
    RUN.check()
    with pytest.raises(RemoteProtocolError):
        msgspec.structs.replace(RUN, **changes).check()


def test_run_manifests_at_the_limits_pass() -> None:
    text, name = "x" * limits.MAX_TEXT_CHARS, "n" * limits.MAX_NAME_CHARS
    shares = [TaskShare("a", 1e-6), TaskShare(name, 1e6), *(TaskShare(f"task {n}", 1.0) for n in range(62))]
    assert len(shares) == limits.MAX_TASKS
    files = tuple(RunFile(each, sized(limits.MAX_RUN_FILE_BYTES)) for each in sorted(RUN_FILE_NAMES))
    for changes in (
        replaced(name=name, goal=text, base_model=text, licence=text, content_policy=text, reward=name, files=files),
        replaced(name="n", goal="x", base_model="x", licence="x", content_policy="x", reward="n"),
        replaced(tasks=tuple(shares), staleness_bound=limits.MAX_STALENESS, publish_every=limits.MAX_STALENESS),
        replaced(parameters=1, staleness_bound=0, publish_every=1, sampling=Sampling(0.01, 1, 1)),
        replaced(sampling=Sampling(100.0, limits.MAX_COMPLETION_TOKENS, limits.MAX_GROUP_SIZE)),
        replaced(parameters=limits.MAX_WEIGHT_BYTES // 4, dtype="float32"),
        replaced(prompt_frame=(text, text), turn_frame=(text, text)),
    ):
        msgspec.structs.replace(RUN, **changes).check()


@pytest.mark.parametrize(
    "changes",
    [
        replaced(version=-1),
        replaced(version=1 << 48, step=1 << 48),
        replaced(step=2),
        replaced(weights_digest=b""),
        replaced(beacon=bytes(31)),
        replaced(previous=b""),
        replaced(version=0),
        replaced(weights=BlobRef(10_000, 4096, ())),
        replaced(weights=SMALL),
        replaced(patches=(Patch(3, bytes(32), SMALL),)),
        replaced(patches=(Patch(-2, b"", SMALL),)),
        replaced(patches=(Patch(2, b"", SMALL),)),
        replaced(patches=(Patch(NO_BASE, bytes(32), SMALL),)),
        replaced(patches=(Patch(2, bytes(32), REF),)),
        replaced(patches=(Patch(2, bytes(32), SMALL),) * 2),
        replaced(patches=(Patch(2, bytes(32), BlobRef(5_000, 4096, bytes(31))),)),
        replaced(version=20, step=20, patches=tuple(Patch(i, bytes(32), SMALL) for i in range(limits.MAX_PATCHES + 1))),
    ],
)
def test_impossible_policy_manifests_are_refused(changes: dict[str, object]) -> None:
    POLICY.check(weight_bytes=REF.size_bytes)
    with pytest.raises(RemoteProtocolError):
        msgspec.structs.replace(POLICY, **changes).check(weight_bytes=REF.size_bytes)


def test_layout_digest_covers_every_field() -> None:
    one, two = TensorSpec("a", "float32", (2, 3)), TensorSpec("b", "bfloat16", (4,))
    variants = [
        [one, two],
        [two, one],
        [one],
        [one, TensorSpec("b", "float16", (4,))],
        [one, TensorSpec("b", "bfloat16", (2, 2))],
        [one, TensorSpec("c", "bfloat16", (4,))],
    ]
    assert len({layout_digest(layout) for layout in variants}) == len(variants)
    assert (one.size_bytes, two.size_bytes, TensorSpec("s", "float16", ()).size_bytes) == (24, 8, 2)


def test_manifests_do_not_grow_with_the_model() -> None:
    """405B parameters in bf16, and every patch that a manifest may have."""
    size = 2 * 405 * 10**9
    weights, patch = BlobRef(size, limits.MAX_CHUNK_BYTES, bytes(32)), BlobRef(size // 8, 1 << 22, bytes(32))
    patches = tuple(Patch(base, bytes(32), patch) for base in range(limits.MAX_PATCHES))
    policy = msgspec.structs.replace(POLICY, version=9, step=9, weights=weights, patches=patches)
    policy.check(weight_bytes=size)
    assert len(seal(Identity(bytes(16)), policy, run=bytes(32), now=0.0)) < 1_500


@pytest.mark.parametrize("billions", [32, 70, 405])
def test_no_limit_refuses_large_models(billions: int) -> None:
    run = msgspec.structs.replace(RUN, parameters=billions * 10**9, dtype="bfloat16")
    run.check()
    chunk_bytes = chunk_bytes_for(run.weight_bytes)
    BlobRef(run.weight_bytes, chunk_bytes, bytes(32)).check(max_bytes=run.weight_bytes)


def test_a_run_of_70b_parameters_fits_every_limit() -> None:
    """Llama 3.1 70B in bf16, S = 1,024 and a version every 2 updates: what its peers send one another."""
    parameters, layers, window = 70_553_706_496, 80, 1_024 // 2 + 2
    run = msgspec.structs.replace(RUN, parameters=parameters, dtype="bfloat16", staleness_bound=1_024)
    run.check()
    assert run.weight_bytes == 2 * parameters <= limits.MAX_WEIGHT_BYTES
    assert 9 * layers + 3 <= limits.MAX_TENSORS, "tensors of a layer, embeddings, norm and output"
    weights = BlobRef(run.weight_bytes, limits.MAX_CHUNK_BYTES, bytes(32))
    weights.check(max_bytes=run.weight_bytes)
    proof = bytes(32) * math.ceil(math.log2(weights.total))
    assert len(proof) <= limits.MAX_PROOF_BYTES
    chunk = Chunk(weights.root, weights.total - 1, bytes(weights.chunk_bytes), proof)
    assert len(encode(chunk)) <= limits.MAX_FRAME_BYTES
    have = Have(weights.root, bytes(math.ceil(weights.total / 8)))
    assert len(encode(have)) <= limits.MAX_CONTROL_FRAME_BYTES
    # Every version has a patch from the one before, and every 4th, 16th and 64th a longer one; every 16th two more.
    edges = window + window // 4 + window // 16 * 3 + window // 64
    assert edges <= limits.MAX_HEAD_EDGES
    # A keyframe and a patch from version 0 may have the size of the weights together with the regular ones.
    patches = (Patch(NO_BASE, b"", BlobRef(run.weight_bytes - 1, 1 << 22, bytes(32))),)
    policy = msgspec.structs.replace(POLICY, version=16, step=32, weights=weights, patches=patches)
    policy.check(weight_bytes=run.weight_bytes)


def test_a_listed_blob_keeps_its_name_and_proves_like_another() -> None:
    data = bytes(range(256)) * 40
    old, new = listed(data, 4096), blob_of(data, 4096)
    assert old.root == digest("p2prl/blob-root/v1", encode(old)) != new.root
    nodes = tree_of(data, 4096)[1]
    for index in range(3):
        start, length = old.span(index)
        proof = proof_among(nodes, index, 3)
        assert old.proves(index, data[start : start + length], proof)
        assert new.proves(index, data[start : start + length], proof)
        assert not old.proves(index, data[start : start + length - 1], proof)


def test_manifests_of_wire_version_1_decode() -> None:
    """Run folders and journals outlive a release, so manifests without the appended fields must decode."""
    run, policy = (msgspec.msgpack.decode(encode(body)) for body in (RUN, POLICY))
    assert decode(msgspec.msgpack.encode(run[:-1]), RunManifest, limit_bytes=1 << 20) == RUN
    old = decode(msgspec.msgpack.encode(policy[:-1]), PolicyManifest, limit_bytes=1 << 20)
    assert old == msgspec.structs.replace(POLICY, patches=())


def test_compute_dtype_defaults_to_dtype() -> None:
    assert RUN.engine_dtype == RUN.dtype
    assert msgspec.structs.replace(RUN, dtype="bfloat16", compute_dtype="float32").engine_dtype == "float32"
    with pytest.raises(RemoteProtocolError):
        msgspec.structs.replace(RUN, compute_dtype="int4").check()
