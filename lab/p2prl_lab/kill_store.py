"""Kill a process at random times while it publishes versions into the weight store; then check every version.

    python -m p2prl_lab.kill_store --kills 200 --seed 0

A child publishes an endless series of versions with the code of a learner (`p2prl.learner.publishing.version_files`,
`p2prl.net.storage.weight_store`): it stages a version, signs it (a file in the place of the journal), writes it over
the weights file and forgets versions older than the window. The parent ends it with SIGKILL, settles the store as a
starting learner does, and compares every word of every version of the window. Prints a report as JSON; exits 1 at the
first violation, and keeps the folder.
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
from pathlib import Path

import numpy as np

from p2prl.learner.publishing.patch_choice import SPANS, PatchBase
from p2prl.learner.publishing.version_files import VersionJob, write_version
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.weight_store import WeightStore
from p2prl.patches.words import BF16
from p2prl.protocol.manifests import blob_of, chunk_bytes_for
from p2prl_lab.kill_weights import KINDS, WORDS, Source

WINDOW = 9
PIECES = 32
PHASES = ("stage", "commit", "retain")


def signed_version(folder: Path) -> int:
    """The newest version that was signed."""
    path = folder / "signed"
    return int(path.read_text()) if path.exists() else -1


def root_of(source: Source, number: int) -> bytes:
    words = source.words(number)
    return blob_of(words, chunk_bytes_for(len(words), pieces=PIECES)).root


def settled(folder: Path, source: Source) -> WeightStore:
    """The store as a learner finds it after a start."""
    signed, chain = signed_version(folder), WeightStore(folder / "blobs" / "chain")
    if signed < 0:
        chain.settle(None, None)
    else:
        assert chain.settle(signed, root_of(source, signed)), "the signed version is lost"
    return chain


def publish(folder: Path, source: Source) -> None:
    """Run the child: publish one version after the other and print each step."""
    chain, blobs = settled(folder, source), DiskBlobStore(folder / "blobs")
    number = signed_version(folder)
    while True:
        number += 1
        state = chain.state
        held = set() if state is None else set(state.roots)
        olders = [number - span for span in SPANS if number % span == 0 and number - span in held]
        tell("stage", number)
        files = write_version(
            VersionJob(
                version=number,
                word_type=BF16,
                bases=[PatchBase(older, bytes(32), None, chained=True) for older in olders],
                blobs=blobs,
                chain=chain,
                chunk_pieces=PIECES,
                band_ulp=0,
                on_progress=lambda _: None,
            ),
            memoryview(bytearray(source.words(number))),
        )
        for path in blobs.directory.iterdir():  # nobody fetches the patches here
            if path.is_file():
                path.unlink()
        new = folder / "signed.new"
        new.write_text(str(number))
        new.rename(folder / "signed")
        tell("commit", number)
        if files.staged:
            chain.commit()
        tell("retain", number)
        chain.retain(number - WINDOW, besides=0)


def tell(event: str, number: int) -> None:
    print(json.dumps([event, number]), flush=True)


def kill_once(folder: Path, rng: np.random.Generator, lasts_s: dict[str, float]) -> str:
    """Start the child, kill it in a random phase, and return that phase."""
    phase, skipped = PHASES[rng.integers(len(PHASES))], int(rng.integers(3))
    argv = [sys.executable, "-m", "p2prl_lab.kill_store", "--child", str(folder)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    doing, began = "", 0.0
    try:
        for line in child.stdout:
            event, _ = json.loads(line)
            now = time.monotonic()
            if doing:
                lasts_s[doing] = max(lasts_s[doing], now - began)
            doing, began = event, now
            skipped -= event == phase
            if skipped < 0:
                break
        time.sleep(rng.uniform(0.0, 1.2 * lasts_s[phase]))
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    return phase


def check(folder: Path, source: Source) -> tuple[int, bool]:
    """Check every version of the window; (newest version, whether a version in progress was taken back)."""
    signed = signed_version(folder)
    before = WeightStore(folder / "blobs" / "chain").state
    chain = settled(folder, source)
    state = chain.state
    if signed < 0:
        assert state is None
        return signed, False
    assert state is not None
    assert state.at == signed
    assert state.target is None
    kept = {0, *range(max(0, signed - WINDOW + 1), signed + 1)}
    assert set(state.roots) >= kept, f"{sorted(state.roots)} at {signed}"
    for version in state.roots:
        assert bytes(chain.copy_of(version)) == source.words(version), f"words of version {version} differ"
    named = {"weights", "chain.json", *(inverse.name for inverse in state.inverses)}
    assert {path.name for path in chain.directory.iterdir()} == named
    return signed, before is not None and before.target is not None and before.target > signed


def main() -> int:
    """Run the test and print its report, or run as its child."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="words, phases and moments")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        publish(arguments.child, Source(arguments.child))
    folder = Path(tempfile.mkdtemp(prefix="kill-store-"))
    source, rng = Source.made(folder, arguments.seed), np.random.default_rng(arguments.seed)
    kills: Counter[str] = Counter()
    lasts_s = dict.fromkeys(PHASES, 0.05)
    taken_back = newest = 0
    for kill in range(arguments.kills):
        kills[kill_once(folder, rng, lasts_s)] += 1
        try:
            newest, was_taken_back = check(folder, source)
        except AssertionError as error:
            print(f"BROKEN at kill {kill}: {error}\nKept in {folder}", file=sys.stderr)
            return 1
        taken_back += was_taken_back
        if kill % 20 == 19:
            print(f"{kill + 1} kills, version {newest}", file=sys.stderr)
    document = {
        "kills": dict(kills),
        "versions": newest,
        "taken_back": taken_back,
        "words": WORDS,
        "kinds": KINDS,
        "seed": arguments.seed,
    }
    print(json.dumps(document, indent=1, sort_keys=True))
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
