"""Kill a process at random times while it follows a run's versions as a volunteer does; then check the disk.

    python -m p2prl_lab.kill_weights --kills 200 --seed 0

A child follows an endless series of versions with the code of a volunteer: it writes chunks of a patch into the blob
store (`p2prl.net.storage.chain_blobs`), decodes the patch over the weights of the chain, which is first made of the
version that was downloaded whole (`p2prl.net.process.version_rebuild`), reads every chunk of them as it would for a
peer, keeps their signed manifest (`p2prl.net.storage.versions_at_start`), and drops older versions. Now and then it
jumps: a version comes as a whole file. The parent ends it with SIGKILL, reads the disk as a restarted volunteer does,
compares every word of the kept versions, and restarts the child, which must continue from there without losing a
version or a chunk of the next patch. Prints a report as JSON; exits 1 at the first violation, and keeps the folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from blake3 import blake3

from p2prl.net.process import control
from p2prl.net.process.version_rebuild import rebuild, resume_chain
from p2prl.net.storage.chain_blobs import CHAIN_FOLDER, WorkerBlobs
from p2prl.net.storage.chain_reader import ChainReader
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.held_weights import read_weights
from p2prl.net.storage.versions_at_start import KeptVersions
from p2prl.patches.encode import encode_patch
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.stream_format import SEGMENT_WORDS, segment_spans
from p2prl.patches.words import BF16
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.hash_tree import proof_among
from p2prl.protocol.manifests import BlobRef, Patch, PolicyManifest, blob_of, tree_of
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl_lab.bench.patch.simulated_training import adam_versions

WORDS = SEGMENT_WORDS + 300_000
KINDS = 4
"""Different weights; version n has those of n modulo this, so the series is endless."""

LEARNING_RATE = 1e-5
"""Learning rate that changes 7 % of the words."""

PATCH_CHUNK_BYTES, WEIGHT_CHUNK_BYTES = 16 * 1024, 256 * 1024

KEPT = 3
"""Versions a child keeps."""

JUMP_EVERY = 7
"""One version in this many is a whole file."""

PHASES = ("download", "rebuild", "keep")

LEARNER = identity_of("learner")
RUN_RAW = seal(LEARNER, run_manifest_of(LEARNER, weight_bytes=WORDS * BF16.word_bytes), run=bytes(32), now=1.0)
RUN = envelope_digest(RUN_RAW)


@dataclass
class Source:
    """The published versions, as files: both processes read them."""

    folder: Path

    @classmethod
    def made(cls, folder: Path, seed: int) -> Source:
        first, later = adam_versions(WORDS, LEARNING_RATE, KINDS - 1, seed)
        versions = [first, *later]
        for kind, words in enumerate(versions):
            (folder / f"words-{kind}").write_bytes(words.tobytes())
            old = versions[kind - 1]
            spans = segment_spans(WORDS)
            pairs = [(old[start : start + count], words[start : start + count]) for start, count in spans]
            stream = encode_patch(pairs, words=WORDS, word_type=BF16, kernels=fastest_kernels())
            (folder / f"patch-{kind}").write_bytes(b"".join(stream))
        return cls(folder)

    def words(self, number: int) -> bytes:
        return (self.folder / f"words-{number % KINDS}").read_bytes()

    def patch(self, number: int) -> bytes:
        return (self.folder / f"patch-{number % KINDS}").read_bytes()

    def manifest(self, number: int) -> tuple[bytes, PolicyManifest]:
        words = self.words(number)
        before = blake3(self.words(number - 1)).digest()
        manifest = PolicyManifest(
            version=number,
            step=number,
            weights=blob_of(words, WEIGHT_CHUNK_BYTES),
            weights_digest=blake3(words).digest(),
            previous=bytes(32) if number else b"",
            beacon=bytes(32),
            created_ms=0,
            patches=(Patch(number - 1, before, blob_of(self.patch(number), PATCH_CHUNK_BYTES)),) if number else (),
        )
        return seal(LEARNER, manifest, run=RUN, now=2.0), manifest


def holds(blobs: DiskBlobStore, ref: BlobRef) -> int:
    """Number of a blob's chunks that are on disk and intact."""
    return sum(ref.proves(index, blobs.read(ref, index), blobs.proof(ref, index)) for index in sorted(blobs.begin(ref)))


def kept_versions_on(folder: Path) -> list[PolicyManifest]:
    """The complete versions on this disk, oldest first, as loaded by a starting volunteer."""
    resume_chain(folder)
    blobs = WorkerBlobs(folder)
    manifests = [body_of(open_envelope(raw, now=None), PolicyManifest) for raw in KeptVersions(folder).found(RUN_RAW)]
    whole = [held for held in manifests if holds(blobs, held.weights) == held.weights.total]
    blobs.close()
    return whole


def follow(folder: Path, source: Source) -> None:
    """Run the child: follow the versions and print each step."""
    disk = folder / "blobs"
    held = kept_versions_on(disk)
    blobs, holdings = WorkerBlobs(disk), KeptVersions(disk)
    if not held:
        raw, first = source.manifest(0)
        blobs.add(first.weights, source.words(0))
        holdings.keep(raw, first)
        held = [first]
    for known in held:
        blobs.begin(known.weights)
    while True:
        raw, target = source.manifest(held[-1].version + 1)
        (patch,) = target.patches
        fetch(blobs, patch.blob, source.patch(target.version), target.version)
        tell("rebuild", target.version, 0)
        if target.version % JUMP_EVERY == 0:
            blobs.add(target.weights, source.words(target.version))
        else:
            rebuild(
                control.PatchesReady(
                    digest=bytes(32),
                    version=target.version,
                    weights=target.weights,
                    weights_digest=target.weights_digest,
                    dtype="bfloat16",
                    base_version=held[-1].version,
                    base=held[-1].weights.root,
                    patches=(patch.blob.root,),
                    held=tuple(known.weights.root for known in held),
                    folder=str(disk),
                )
            )
        tell("keep", target.version, 0)
        assert holds(blobs, target.weights) == target.weights.total
        holdings.keep(raw, target)
        tell("held", target.version, 0)
        held.append(target)
        for old in held[:-KEPT]:
            roots = [old.weights.root, *(patch.blob.root for patch in old.patches)]
            for root in set(roots).difference(known.weights.root for known in held[-KEPT:]):
                blobs.drop(root)
        held = held[-KEPT:]


def fetch(blobs: DiskBlobStore, ref: BlobRef, data: bytes, number: int) -> None:
    """Write the chunks of a patch that are not there yet."""
    present = blobs.begin(ref)
    tell("download", number, len(present))
    nodes = tree_of(data, PATCH_CHUNK_BYTES)[1]
    for index in sorted(set(range(ref.total)) - present):
        offset, length = ref.span(index)
        blobs.write(ref, index, data[offset : offset + length], proof_among(nodes, index, ref.total))
        tell("chunk", number, index + 1)
    blobs.finish(ref)


def tell(event: str, number: int, count: int) -> None:
    print(json.dumps([event, number, count]), flush=True)


@dataclass
class Report:
    """Counts of the kills and of the versions found after them."""

    kills: Counter[str] = field(default_factory=Counter)
    """Kills by the child's step."""
    found: Counter[str] = field(default_factory=Counter)
    """Newest version found: the previous one, or the one in progress."""
    files: Counter[int] = field(default_factory=Counter)
    """Versions that were files of their own, beside the chain."""
    chained: Counter[int] = field(default_factory=Counter)
    """Versions in the chain."""
    resumed_chunks: int = 0
    """Chunks of a patch in progress that the next child did not download again."""
    versions: int = 0
    slowest_stock_s: float = 0.0


def _chained(disk: Path) -> int:
    state = ChainReader(disk / CHAIN_FOLDER).state
    return 0 if state is None else len(state.roots)


class KillTest:
    """The parent."""

    def __init__(self, folder: Path, source: Source, seed: int) -> None:
        self._folder = folder
        self._source = source
        self._rng = np.random.default_rng(seed)
        self._lasts_s = dict.fromkeys(PHASES, 0.05)
        self.report = Report()

    def kill_once(self) -> None:
        """Start the child, kill it in a random phase, and check the disk."""
        phase = PHASES[self._rng.integers(len(PHASES))]
        skipped = self._rng.integers(2)
        argv = [sys.executable, "-m", "p2prl_lab.kill_weights", "--child", str(self._folder)]
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        began: dict[str, float] = {}
        doing = ""
        try:
            for line in child.stdout:
                event, _, _ = json.loads(line)
                if event in (*PHASES, "held"):
                    if doing:
                        self._lasts_s[doing] = max(self._lasts_s[doing], time.monotonic() - began[doing])
                    doing = event if event in PHASES else ""
                    began[doing] = time.monotonic()
                if event == phase:
                    skipped -= 1
                    if skipped < 0:
                        break
            time.sleep(self._rng.uniform(0.0, 1.2 * self._lasts_s[phase]))
        finally:
            child.kill()
            rest = child.stdout.read()  # output written before the signal
            child.wait()
        events = [json.loads(said) for said in (line + rest).splitlines() if said.endswith("]")]
        self._check(*events[-1])

    def _check(self, said: str, number: int, count: int) -> None:
        doing = {"chunk": "download", "held": "between versions"}.get(said, said)
        self.report.kills[doing] += 1
        disk = self._folder / "blobs"
        before_s = time.monotonic()
        held = kept_versions_on(disk)
        self.report.slowest_stock_s = max(self.report.slowest_stock_s, time.monotonic() - before_s)
        assert held, "no version on disk"
        newest = held[-1].version
        least = number if said == "held" else number - 1
        assert least <= newest <= number, f"version {newest} after {said} of {number}"
        for manifest in held:
            words = read_weights(disk / manifest.weights.root.hex())
            assert words == self._source.words(manifest.version), f"words of version {manifest.version} differ"
        files = [path for path in disk.iterdir() if path.suffix == "" and path.is_file()]
        whole = sum(path.stat().st_size == held[-1].weights.size_bytes for path in files)
        self.report.files[whole] += 1
        self.report.chained[_chained(disk)] += 1
        self.report.found["the version before" if newest < number else "the version in progress"] += 1
        self.report.versions = newest
        if newest < number:
            (patch,) = self._source.manifest(number)[1].patches
            blobs = DiskBlobStore(disk)
            present = holds(blobs, patch.blob)
            blobs.close()
            wanted = count if said in ("download", "chunk") else patch.blob.total
            assert present >= wanted, f"{present} chunks of {wanted} after {said} of {number}"
            self.report.resumed_chunks += present
        left = {path.suffix for path in disk.rglob("*")} - {"", ".part", ".policy", ".tree", ".json"}
        assert not left, f"{left} left behind"


def main() -> int:
    """Run the test and print its report, or run as its child."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="words, phases and moments")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        follow(arguments.child, Source(arguments.child))
    folder = Path(tempfile.mkdtemp(prefix="kill-weights-"))
    test = KillTest(folder, Source.made(folder, arguments.seed), arguments.seed)
    for kill in range(arguments.kills):
        try:
            test.kill_once()
        except AssertionError as error:
            print(f"BROKEN at kill {kill}: {error}\nKept in {folder}", file=sys.stderr)
            return 1
        if kill % 20 == 19:
            print(f"{kill + 1} kills, version {test.report.versions}", file=sys.stderr)
    report = test.report
    counts = {name: dict(getattr(report, name)) for name in ("kills", "found", "files", "chained")}
    document = {**report.__dict__, **counts, "seed": arguments.seed}
    print(json.dumps(document, indent=1, sort_keys=True))
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
