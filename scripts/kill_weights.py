"""Kill a process at random moments of fetching, preparing and committing weights, and hold the weight file to its word.

    python -m scripts.kill_weights --kills 200 --seed 0

A child follows an endless line of versions: chunks of a patch into the blob store, segments into the weight file,
commit, the next. The parent ends it with SIGKILL, opens what is left, compares every word with the version it claims
to be, and starts the child again, which must go on from there: no version back, no prepared segment and no chunk lost.
Prints a report as JSON; exits 1 at the first broken promise, and keeps the folder.
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

from p2prl.net.blobs import DiskBlobs
from p2prl.patches.kernels import NUMPY_KERNELS, fastest_kernels
from p2prl.patches.segments import SEGMENT_WORDS
from p2prl.patches.simulated import adam_versions
from p2prl.patches.stream import encode_patch, segment_spans
from p2prl.patches.words import BF16, Words
from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import BlobRef, blob_of
from p2prl.weights.disk import DiskFiles
from p2prl.weights.following import PatchPreparation
from p2prl.weights.records import Version
from p2prl.weights.weight_file import WeightFile

WORDS = SEGMENT_WORDS + 300_000
KINDS = 4
"""Different versions; number n has the words of n modulo this, so there is a next one for ever."""

LEARNING_RATE = 1e-5
"""Changes seven words in a hundred."""

CHUNK_BYTES = 16 * 1024

PHASES = ("download", "prepare", "commit")


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

    def words(self, number: int) -> Words:
        return np.fromfile(self.folder / f"words-{number % KINDS}", dtype=BF16.dtype)

    def version(self, number: int) -> Version:
        return Version(number=number, state=Digest(blake3(self.words(number).tobytes()).digest()))

    def patch(self, number: int) -> tuple[BlobRef, bytes]:
        data = (self.folder / f"patch-{number % KINDS}").read_bytes()
        return blob_of(data, CHUNK_BYTES), data


def opened(folder: Path) -> WeightFile:
    # numba would compile for seconds in every one of two hundred processes; the results are the same.
    return WeightFile(DiskFiles(folder / "weights"), words=WORDS, word_type=BF16, kernels=NUMPY_KERNELS)


def follow(folder: Path, source: Source) -> None:
    """The child: version after version, saying what it has done so far."""
    weights = opened(folder)
    blobs = DiskBlobs(folder / "blobs")
    if weights.held is None:
        whole = folder / "whole"
        whole.write_bytes(source.words(0).tobytes())
        weights.adopt(whole, source.version(0))
    while True:
        assert weights.held is not None
        number = weights.held.number + 1
        target = source.version(number)
        ref, data = source.patch(number)
        present = blobs.begin(ref)
        tell("download", number, len(present))
        for index in sorted(set(range(len(ref.chunks))) - present):
            offset, length = ref.span(index)
            blobs.write(ref, index, data[offset : offset + length])
            tell("chunk", number, index + 1)
        blobs.finish(ref)
        preparation = PatchPreparation(weights, target)
        tell("prepare", number, len(weights.prepared))
        with blobs.path(ref.root).open("rb") as file:
            while piece := file.read(CHUNK_BYTES):
                before = len(weights.prepared)
                preparation.receive(piece)
                if len(weights.prepared) > before:
                    tell("segment", number, len(weights.prepared))
        tell("commit", number, 0)
        weights.commit()
        tell("held", number, 0)
        blobs.drop(ref.root)


def tell(event: str, number: int, count: int) -> None:
    print(json.dumps([event, number, count]), flush=True)


@dataclass
class Report:
    """What the kills met and what was found after them."""

    kills: Counter[str] = field(default_factory=Counter)
    """By what the child was doing."""
    found: Counter[str] = field(default_factory=Counter)
    """What was held afterwards: the version before, or the one that was coming."""
    resumed_segments: int = 0
    resumed_chunks: int = 0
    versions: int = 0
    slowest_open_s: float = 0.0


class Torment:
    """The parent."""

    def __init__(self, folder: Path, source: Source, seed: int) -> None:
        self._folder = folder
        self._source = source
        self._dice = np.random.default_rng(seed)
        self._lasts_s = dict.fromkeys(PHASES, 0.05)
        self.report = Report()

    def kill_once(self) -> None:
        """One life of the child, ended in a phase chosen by the dice, and everything checked after it."""
        phase = PHASES[self._dice.integers(len(PHASES))]
        spared = self._dice.integers(2)
        argv = [sys.executable, "-m", "scripts.kill_weights", "--child", str(self._folder)]
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
                    spared -= 1
                    if spared < 0:
                        break
            time.sleep(self._dice.uniform(0.0, 1.2 * self._lasts_s[phase]))
        finally:
            child.kill()
            rest = child.stdout.read()  # what it still said before the signal
            child.wait()
        events = [json.loads(said) for said in (line + rest).splitlines() if said.endswith("]")]
        self._check([tuple(event) for event in events])

    def _check(self, events: list[tuple[str, int, int]]) -> None:
        said, number, count = events[-1]
        doing = {"chunk": "download", "segment": "prepare", "held": "between versions"}.get(said, said)
        self.report.kills[doing] += 1
        before_s = time.monotonic()
        weights = opened(self._folder)
        self.report.slowest_open_s = max(self.report.slowest_open_s, time.monotonic() - before_s)
        held = weights.held
        assert held is not None, "no version is held"
        assert not weights.damaged, f"segments {weights.damaged} are damaged"
        least = number if said == "held" else number - 1
        assert least <= held.number <= number + (said == "held"), f"version {held.number} after {said} of {number}"
        assert held == self._source.version(held.number), f"version {held.number} claims another state"
        found = np.frombuffer(weights.view(), dtype=BF16.dtype)
        assert np.array_equal(found, self._source.words(held.number)), f"words of version {held.number} differ"
        self.report.found["the version before" if held.number < number else "the version coming"] += 1
        self.report.versions = held.number
        if held.number == number - 1 and said in ("segment", "commit"):
            least_segments = count if said == "segment" else len(segment_spans(WORDS))
            assert len(weights.prepared) >= least_segments, f"{len(weights.prepared)} segments of {least_segments}"
            self.report.resumed_segments += len(weights.prepared)
        if said == "chunk":
            ref, _ = self._source.patch(number)
            store = DiskBlobs(self._folder / "blobs")
            present = store.begin(ref)
            store.close()
            assert len(present) >= count, f"{len(present)} chunks of {count}"
            self.report.resumed_chunks += len(present)


def main() -> int:
    """Run the torment and print its report, or be its child."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="words, phases and moments")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        follow(arguments.child, Source(arguments.child))
    folder = Path(tempfile.mkdtemp(prefix="kill-weights-"))
    torment = Torment(folder, Source.made(folder, arguments.seed), arguments.seed)
    for kill in range(arguments.kills):
        try:
            torment.kill_once()
        except AssertionError as error:
            print(f"BROKEN at kill {kill}: {error}\nKept in {folder}", file=sys.stderr)
            return 1
        if kill % 20 == 19:
            print(f"{kill + 1} kills, version {torment.report.versions}", file=sys.stderr)
    report = torment.report
    document = {**report.__dict__, "kills": dict(report.kills), "found": dict(report.found), "seed": arguments.seed}
    print(json.dumps(document, indent=1, sort_keys=True))
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
