"""Kept versions: only those that the run's learner signed and whose weights are still on disk."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from p2prl.net.storage.versions_at_start import KeptVersions
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.manifests import BlobRef, DataSet, Patch, PolicyManifest, TaskShare, blob_of
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of

LEARNER, LIAR = identity_of("learner"), identity_of("liar")
RUN_RAW = seal(LEARNER, run_manifest_of(LEARNER, weight_bytes=9000), run=bytes(32), now=1.0)
RUN = envelope_digest(RUN_RAW)


def write(folder: Path, data: bytes) -> BlobRef:
    ref = blob_of(data, 4096)
    (folder / ref.root.hex()).write_bytes(data)
    return ref


def version(folder: Path, number: int, *, signer: object = LEARNER, run: bytes = RUN) -> tuple[bytes, PolicyManifest]:
    """A version with its weights and a patch on disk."""
    weights = write(folder, bytes([number]) * 9000)
    patches = (Patch(number - 1, bytes(32), write(folder, bytes([100 + number]) * 50)),) if number else ()
    previous = bytes(32) if number else b""
    manifest = PolicyManifest(number, number, weights, bytes(32), previous, bytes(32), 0, patches)
    assert signer in (LEARNER, LIAR)
    return seal(LEARNER if signer is LEARNER else LIAR, manifest, run=run, now=2.0), manifest


@pytest.fixture
def kept(tmp_path: Path) -> KeptVersions:
    return KeptVersions(tmp_path)


def test_versions_come_back_oldest_first(kept: KeptVersions, tmp_path: Path) -> None:
    made = [version(tmp_path, number) for number in range(12)]
    for raw, manifest in reversed(made):
        kept.keep(raw, manifest)
    assert kept.found(RUN_RAW) == [raw for raw, _ in made]
    assert all(
        (tmp_path / ref.root.hex()).exists() for _, m in made for ref in (m.weights, *(p.blob for p in m.patches))
    )


def test_a_version_without_its_weights_is_forgotten(kept: KeptVersions, tmp_path: Path) -> None:
    (old, gone), (new, manifest) = version(tmp_path, 0), version(tmp_path, 1)
    kept.keep(old, gone)
    (tmp_path / gone.weights.root.hex()).unlink()
    kept.keep(new, manifest)
    assert len(list(tmp_path.glob("*.policy"))) == 1
    assert kept.found(RUN_RAW) == [new]


@pytest.mark.parametrize("forgery", ["another signer", "another run", "cut short", "another name"])
def test_manifests_the_learner_did_not_sign_for_this_run_are_ignored(
    kept: KeptVersions, tmp_path: Path, forgery: str
) -> None:
    raw, manifest = version(
        tmp_path, 0, signer=LIAR if forgery == "another signer" else LEARNER,
        run=bytes(32) if forgery == "another run" else RUN,
    )  # fmt: skip
    kept.keep(raw[:-1] if forgery == "cut short" else raw, manifest)
    if forgery == "another name":
        other = write(tmp_path, b"other" * 1000)
        (tmp_path / f"{manifest.weights.root.hex()}.policy").rename(tmp_path / f"{other.root.hex()}.policy")
    assert kept.found(RUN_RAW) == []


def test_unneeded_files_are_deleted_and_incomplete_downloads_stay(kept: KeptVersions, tmp_path: Path) -> None:
    raw, manifest = version(tmp_path, 3)
    kept.keep(raw, manifest)
    stale = write(tmp_path, b"old" * 3000)
    os.utime(tmp_path / stale.root.hex(), (1.0, 1.0))
    (tmp_path / "dead.rebuilt").write_bytes(b"half")
    (tmp_path / f"{'ab' * 32}.part").write_bytes(b"half")
    for name in (manifest.weights.root.hex(), stale.root.hex(), "ab" * 32):
        (tmp_path / f"{name}.tree").write_bytes(bytes(64))
    assert kept.found(RUN_RAW) == [raw]
    left = {path.name for path in tmp_path.iterdir()}
    assert stale.root.hex() not in left
    assert "dead.rebuilt" not in left
    assert {name for name in left if name.endswith(".tree")} == {
        f"{manifest.weights.root.hex()}.tree",
        f"{'ab' * 32}.tree",
    }
    assert f"{'ab' * 32}.part" in left
    assert manifest.patches[0].blob.root.hex() in left


def test_a_patch_newer_than_the_newest_version_stays(kept: KeptVersions, tmp_path: Path) -> None:
    raw, manifest = version(tmp_path, 3)
    kept.keep(raw, manifest)
    coming = write(tmp_path, b"patch of version 4")
    held_at = (tmp_path / f"{manifest.weights.root.hex()}.policy").stat().st_mtime
    os.utime(tmp_path / coming.root.hex(), (held_at + 1, held_at + 1))
    assert kept.found(RUN_RAW) == [raw]
    assert (tmp_path / coming.root.hex()).exists()
    next_raw, next_manifest = version(tmp_path, 5)
    kept.keep(next_raw, next_manifest)
    os.utime(tmp_path / f"{next_manifest.weights.root.hex()}.policy", (held_at + 2, held_at + 2))
    assert kept.found(RUN_RAW) == [raw, next_raw]
    assert not (tmp_path / coming.root.hex()).exists(), "a later version is here: nothing leads over it any more"


def test_the_runs_data_is_kept(tmp_path: Path) -> None:
    bare = run_manifest_of(LEARNER)
    refs = [write(tmp_path, text) for text in (b"prompts", b"answers", b"code")]
    data = DataSet("rows", 3, refs[0], refs[1], "{}", refs[2])
    manifest = msgspec.structs.replace(bare, tasks=(*bare.tasks, TaskShare("rows", 1.0)), data_sets=(data,))
    raw = seal(LEARNER, manifest, run=bytes(32), now=1.0)
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    kept = KeptVersions(tmp_path)
    newest, its = version(tmp_path, 1, run=envelope_digest(raw))
    kept.keep(newest, its)
    other = write(tmp_path, b"of no version")
    os.utime(tmp_path / other.root.hex(), (1, 1))
    assert kept.found(raw) == [newest]
    assert all((tmp_path / ref.root.hex()).exists() for ref in refs)
    assert not (tmp_path / other.root.hex()).exists()
