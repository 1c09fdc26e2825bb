"""Runs whose manifests, patches and files try to fill the disk or the memory of a volunteer, one for each attack."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import msgspec
from blake3 import blake3

from p2prl.patches.encode import encode_patch
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.words import FP32
from p2prl.protocol import limits
from p2prl.protocol.digests import chunk_digest
from p2prl.protocol.hash_tree import TreeBuilder, bound_top, top_of
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import (
    NO_BASE,
    BlobRef,
    DataSet,
    Patch,
    PolicyManifest,
    RunFile,
    TaskShare,
    blob_of,
    chunk_bytes_for,
)
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl_lab.testing.hostile_learner import HostileRun

_CHUNK_BYTES = 1 << 18
_GIB = 1 << 30


def hostile_run(attack: str, key: Identity, *, weight_bytes: int, now: float, has_model: bool = False) -> HostileRun:
    """The run of an attack. `weight_bytes` is what its manifest promises, a multiple of four.

    With `has_model` it ships the files of a small model, and the model decides the size: a volunteer that samples and a
    validator refuse a run without one.
    """
    manifest = run_manifest_of(key, weight_bytes=weight_bytes)
    run = HostileRun(key, msgspec.structs.replace(manifest, name=attack, created_ms=int(now * 1000)))
    if has_model:
        _ship_model(run)
    ATTACKS[attack](run, random.Random(attack))
    return run


def honest(run: HostileRun, rng: random.Random) -> None:
    """Three versions with nothing wrong in them."""
    for _ in range(3):
        _add_version(run, rng.randbytes(run.manifest.weight_bytes))


def oversized_weights(run: HostileRun, rng: random.Random) -> None:
    """Weights of 1.2 GB that are one chunk, many times."""
    chunk = rng.randbytes(_CHUNK_BYTES)
    run.versions.append(_version(run.serve(chunk, repeated(1_200_000_000, chunk)), b""))


def largest_weights(run: HostileRun, rng: random.Random) -> None:
    """As large as the chunks of a blob allow."""
    chunk = rng.randbytes(limits.MAX_CHUNK_BYTES)
    ref = BlobRef(limits.MAX_WEIGHT_BYTES, len(chunk), rng.randbytes(32))
    run.versions.append(_version(run.serve(chunk, ref), b""))


def undersized_weights(run: HostileRun, rng: random.Random) -> None:
    """Weights four bytes short, which no engine can load."""
    _add_version(run, rng.randbytes(run.manifest.weight_bytes - 4))


def repeated_chunks(run: HostileRun, rng: random.Random) -> None:
    """Weights of the right size that are one chunk, many times: an honest model may be all zeros."""
    size = run.manifest.weight_bytes
    chunk = rng.randbytes(chunk_bytes_for(size))
    for _ in range(3):
        ref = run.serve(chunk, repeated(size, chunk))
        run.versions.append(_version(ref, (chunk * -(-size // len(chunk)))[:size]))


def oversized_patch(run: HostileRun, rng: random.Random) -> None:
    """A patch of 300 MB that is one chunk, many times."""
    _add_version(run, rng.randbytes(run.manifest.weight_bytes))
    chunk = rng.randbytes(_CHUNK_BYTES)
    patch = Patch(0, bytes(32), run.serve(chunk, repeated(300_000_000, chunk)))
    _add_version(run, rng.randbytes(run.manifest.weight_bytes), patch)


def many_patches(run: HostileRun, rng: random.Random) -> None:
    """Eight patches that are each just smaller than the weights."""
    weight_bytes = run.manifest.weight_bytes
    chunk = rng.randbytes(_CHUNK_BYTES)
    for _ in range(9):
        bases = range(len(run.versions)) if len(run.versions) == 8 else ()
        patches = [Patch(base, bytes(32), run.serve(chunk, repeated(weight_bytes - 1 - base, chunk))) for base in bases]
        _add_version(run, rng.randbytes(weight_bytes), *patches)


def understated_patches(run: HostileRun, rng: random.Random) -> None:
    """A head that lists patches of one byte, each of which is as large as a patch may be."""
    size = run.manifest.weight_bytes
    weights = [rng.randbytes(size) for _ in range(6)]
    for number, data in enumerate(weights):
        patches = []
        if number:
            stream = rng.randbytes(size - 4)
            ref = run.serve(stream, blob_of(stream, chunk_bytes_for(size)))
            patches = [Patch(number - 1, blake3(weights[number - 1]).digest(), ref)]
            run.edges.append((number, number - 1, 1))
        _add_version(run, data, *patches)


def patches_that_decode_to_more(run: HostileRun, rng: random.Random) -> None:
    """Keyframes of a model twice as large, as large as a patch may be."""
    size = run.manifest.weight_bytes
    for _ in range(6):
        words = FP32.dtype.type(1).repeat(size // 2)
        stream = b"".join(encode_patch([(words * 0, words)], words=len(words), word_type=FP32, kernels=NUMPY_KERNELS))
        stream = (stream + rng.randbytes(size))[: size - 4]
        patch = Patch(NO_BASE, b"", run.serve(stream, blob_of(stream, chunk_bytes_for(size))))
        _add_version(run, rng.randbytes(size), patch)


def many_versions(run: HostileRun, rng: random.Random) -> None:
    """Eighty versions at once."""
    for _ in range(80):
        _add_version(run, rng.randbytes(run.manifest.weight_bytes))


def huge_data(run: HostileRun, rng: random.Random) -> None:
    """A data set as large as the wire allows."""
    chunk, count = limits.MAX_CHUNK_BYTES, limits.MAX_DATA_BYTES // limits.MAX_CHUNK_BYTES - 1
    prompts = BlobRef(chunk * count, chunk, rng.randbytes(32))
    answers = blob_of(rng.randbytes(4_000_000), _CHUNK_BYTES)
    rows = 300_000
    tasks = (*run.manifest.tasks, TaskShare("rows", 1.0))
    data = DataSet("rows", rows, prompts, answers, "{}")
    run.manifest = msgspec.structs.replace(run.manifest, tasks=tasks, data_sets=(data,))
    honest(run, rng)


def oversized_file(run: HostileRun, rng: random.Random) -> None:
    """A tokenizer of a gigabyte that is one chunk, many times."""
    chunk = rng.randbytes(_CHUNK_BYTES)
    ref = run.serve(chunk, repeated(_GIB, chunk))
    run.manifest = msgspec.structs.replace(run.manifest, files=(RunFile("tokenizer.json", ref),))
    honest(run, rng)


def larger_config(run: HostileRun, rng: random.Random) -> None:
    """A config.json of a model 10,000 times as large, whose layout the manifest signs; its size is the small one's."""
    _ship_model(run, n_embd=4_800, n_inner=19_200)
    honest(run, rng)


def impossible_model(run: HostileRun, rng: random.Random) -> None:
    """More parameters than weights can be sent."""
    run.manifest = msgspec.structs.replace(run.manifest, parameters=limits.MAX_WEIGHT_BYTES // 4 + 1)
    del rng


ATTACKS: dict[str, Callable[[HostileRun, random.Random], None]] = {
    attack.__name__: attack
    for attack in (
        honest,
        oversized_weights,
        largest_weights,
        undersized_weights,
        repeated_chunks,
        oversized_patch,
        many_patches,
        understated_patches,
        patches_that_decode_to_more,
        many_versions,
        huge_data,
        oversized_file,
        larger_config,
        impossible_model,
    )
}
"""Every attack by its name, and honest versions to compare with."""

REFUSED = frozenset(
    {
        "oversized_weights", "largest_weights", "undersized_weights", "oversized_patch", "many_patches",
        "oversized_file", "larger_config", "impossible_model",
    }
)  # fmt: skip
"""Attacks that a signature proves: the run is refused. The others only have to stay within what was told."""


NEEDS_MODEL = frozenset({"larger_config"})
"""Attacks on those that build the run's model: a seeder only passes its files on."""


def repeated(size_bytes: int, chunk: bytes) -> BlobRef:
    """A blob that repeats one chunk."""
    whole, rest = divmod(size_bytes, len(chunk))
    names = [chunk_digest(chunk)] * whole + ([chunk_digest(chunk[:rest])] if rest else [])
    top = top_of(TreeBuilder(names).nodes)
    return BlobRef(size_bytes, len(chunk), bound_top(size_bytes, len(chunk), top))


def _ship_model(run: HostileRun, **changes: int) -> None:
    """Give a run the files of a small model, with its size; `changes` to config.json count in the layout alone."""
    import torch

    from p2prl.models.run_files.export import export_run_files
    from p2prl.models.small_models.tiny_models import tiny_model
    from p2prl.models.weights.layout import layout_of

    made = tiny_model()
    files = export_run_files(made)
    config = json.loads(files["config.json"]) | changes
    files["config.json"] = json.dumps(config).encode()
    with torch.device("meta"):
        claimed = type(made.model)(type(made.model.config)(**config))
    blobs = {name: run.serve(data, blob_of(data, limits.MIN_CHUNK_BYTES)) for name, data in sorted(files.items())}
    run.manifest = msgspec.structs.replace(
        run.manifest,
        parameters=layout_of(made.model, "float32").parameters,
        layout=layout_of(claimed, "float32").digest,
        files=tuple(RunFile(name, ref) for name, ref in blobs.items()),
        tokenizer=blobs["tokenizer.json"].root,
    )


def _add_version(run: HostileRun, data: bytes, *patches: Patch) -> None:
    ref = run.serve(data, blob_of(data, chunk_bytes_for(len(data))))
    run.versions.append(_version(ref, data, *patches))


def _version(ref: BlobRef, data: bytes, *patches: Patch) -> PolicyManifest:
    return PolicyManifest(0, 0, ref, blake3(data).digest(), b"", bytes(32), 0, patches)
