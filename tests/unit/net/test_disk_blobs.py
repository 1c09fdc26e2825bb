"""Blobs on disk: complete or absent, and hashed again after a restart."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from p2prl.errors import IntegrityError, MachineError
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.hash_tree import proof_among
from p2prl.protocol.manifests import BlobRef, blob_of, tree_of

DATA = random.Random(1).randbytes(10_000)
REF = blob_of(DATA, 4096)


def piece(ref: BlobRef, data: bytes, index: int) -> bytes:
    start, size = ref.span(index)
    return data[start : start + size]


def proof(index: int) -> bytes:
    return proof_among(tree_of(DATA, 4096)[1], index, 3)


@pytest.fixture
def blobs(tmp_path: Path) -> DiskBlobStore:
    return DiskBlobStore(tmp_path / "blobs")


def test_an_added_blob_is_complete_and_serves_its_chunks(blobs: DiskBlobStore) -> None:
    path = blobs.add(REF, DATA)
    assert path.read_bytes() == DATA
    assert blobs.begin(REF) == {0, 1, 2}
    assert [blobs.read(REF, i) for i in range(3)] == [piece(REF, DATA, i) for i in range(3)]
    blobs.close()


def test_chunks_arrive_in_any_order_and_the_file_gets_its_name_last(blobs: DiskBlobStore) -> None:
    assert blobs.begin(REF) == set()
    for index in (2, 0, 1):
        assert not blobs.path(REF.root).exists()
        blobs.write(REF, index, piece(REF, DATA, index), proof(index))
    blobs.finish(REF)
    blobs.finish(REF)
    assert blobs.path(REF.root).read_bytes() == DATA
    blobs.close()


def test_after_a_restart_only_chunks_that_hash_are_present(tmp_path: Path) -> None:
    first = DiskBlobStore(tmp_path)
    first.begin(REF)
    first.write(REF, 0, piece(REF, DATA, 0), proof(0))
    first.write(REF, 2, piece(REF, DATA, 2), proof(2))
    first.close()
    part = first.path(REF.root).with_suffix(".part")
    torn = bytearray(part.read_bytes())
    torn[9000] ^= 1
    part.write_bytes(torn)
    second = DiskBlobStore(tmp_path)
    assert second.begin(REF) == {0}
    assert second.begin(REF) == {0}
    second.close()


def test_a_restarted_store_proves_what_it_holds(tmp_path: Path) -> None:
    first = DiskBlobStore(tmp_path)
    first.begin(REF)
    first.write(REF, 2, piece(REF, DATA, 2), proof(2))
    first.close()
    second = DiskBlobStore(tmp_path)
    assert second.begin(REF) == {2}
    assert REF.proves(2, second.read(REF, 2), second.proof(REF, 2))
    second.close()


def test_a_chunk_without_its_proof_is_not_present(tmp_path: Path) -> None:
    """A power cut may lose any page: what cannot be proved to others is fetched again."""
    first = DiskBlobStore(tmp_path)
    first.begin(REF)
    for index in (0, 2):
        first.write(REF, index, piece(REF, DATA, index), proof(index))
    first.close()
    tree = first.path(REF.root).with_suffix(".tree")
    torn = bytearray(tree.read_bytes())
    torn[32] ^= 1  # the leaf beside chunk 0
    tree.write_bytes(torn)
    second = DiskBlobStore(tmp_path)
    assert second.begin(REF) == {2}
    second.close()
    tree.unlink()
    third = DiskBlobStore(tmp_path)
    assert third.begin(REF) == set()
    third.close()


@pytest.mark.parametrize("damage", [None, b"", b"x" * 224])
def test_a_complete_blob_gives_its_tree_again(tmp_path: Path, damage: bytes | None) -> None:
    blobs = DiskBlobStore(tmp_path)
    tree = blobs.add(REF, DATA).with_suffix(".tree")
    tree.unlink() if damage is None else tree.write_bytes(damage)
    assert blobs.begin(REF) == {0, 1, 2}
    assert [blobs.proof(REF, index) for index in range(3)] == [proof(index) for index in range(3)]
    blobs.close()


def test_blobs_that_list_their_chunks_need_no_tree_on_disk(tmp_path: Path) -> None:
    """As a process of wire version 6 left them: one complete, one begun."""
    names = tuple(chunk_digest(piece(REF, DATA, index)) for index in range(3))
    listed = BlobRef(REF.size_bytes, REF.chunk_bytes, names)
    assert listed.tree_hash == REF.tree
    (tmp_path / f"{listed.root.hex()}.part").write_bytes(DATA[:4096] + bytes(5904))
    blobs = DiskBlobStore(tmp_path)
    assert blobs.begin(listed) == {0}
    assert REF.proves(0, blobs.read(listed, 0), blobs.proof(listed, 0))
    for index in (1, 2):
        blobs.write(listed, index, piece(REF, DATA, index), proof(index))
    blobs.finish(listed)
    blobs.close()
    blobs.path(listed.root).with_suffix(".tree").unlink()
    again = DiskBlobStore(tmp_path)
    assert again.begin(listed) == {0, 1, 2}
    assert again.proof(listed, 1) == proof(1)
    again.close()


def test_a_truncated_file_is_downloaded_again(tmp_path: Path) -> None:
    first = DiskBlobStore(tmp_path)
    path = first.add(REF, DATA)
    os.truncate(path, 5000)
    assert first.begin(REF) == {0}
    for index in (1, 2):
        first.write(REF, index, piece(REF, DATA, index), proof(index))
    first.finish(REF)
    assert path.read_bytes() == DATA
    first.close()


def test_opening_a_blob_twice_leaks_no_descriptor(blobs: DiskBlobStore) -> None:
    blobs.begin(REF)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        blobs.begin(REF)
    assert len(os.listdir("/proc/self/fd")) == before
    blobs.close()


def test_dropping_frees_the_space_and_may_be_repeated(blobs: DiskBlobStore) -> None:
    path = blobs.add(REF, DATA)
    blobs.begin(REF)
    blobs.drop(REF.root)
    blobs.drop(REF.root)
    other = blob_of(bytes(5000), 4096)
    blobs.begin(other)
    blobs.drop(other.root)
    assert list(path.parent.iterdir()) == []


def test_a_full_disk_is_a_machine_error_with_a_remedy(blobs: DiskBlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs.begin(REF)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(MachineError, match="No space left") as caught:
        blobs.write(REF, 0, piece(REF, DATA, 0), proof(0))
    assert caught.value.remedy
    blobs.close()


def test_an_unusable_directory_is_a_machine_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError):
        DiskBlobStore(tmp_path / "file" / "blobs")


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail, as on a file system without hard links."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.parametrize("links", [True, False])
def test_a_second_name_outlives_the_blob(blobs: DiskBlobStore, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not links:
        without_links(monkeypatch)
    name = Digest(bytes(range(32)))
    blobs.keep_as(REF.root, name)
    assert not blobs.path(name).exists(), "there is nothing to keep"
    blobs.add(REF, DATA)
    blobs.keep_as(REF.root, name)
    blobs.keep_as(REF.root, name)
    blobs.begin(REF)
    blobs.drop(REF.root)
    assert blobs.path(name).read_bytes() == DATA
    assert [path.name for path in blobs.path(name).parent.iterdir()] == [name.hex()]


@pytest.mark.parametrize("links", [True, False])
def test_a_truncated_second_name_is_replaced(
    blobs: DiskBlobStore, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        without_links(monkeypatch)
    name = Digest(bytes(range(32)))
    blobs.path(name).write_bytes(DATA[:100])
    blobs.keep_as(REF.root, name)
    assert blobs.path(name).read_bytes() == DATA[:100], "there is nothing better"
    blobs.add(REF, DATA)
    blobs.keep_as(REF.root, name)
    assert blobs.path(name).read_bytes() == DATA


def test_a_copy_is_on_disk_before_it_has_its_name(blobs: DiskBlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    name = Digest(bytes(range(32)))
    blobs.add(REF, DATA)
    synced: list[int] = []

    def sync(descriptor: int) -> None:
        assert not blobs.path(name).exists()
        synced.append(os.fstat(descriptor).st_size)

    without_links(monkeypatch)
    monkeypatch.setattr(os, "fsync", sync)
    blobs.keep_as(REF.root, name)
    assert synced == [len(DATA)]
    assert blobs.path(name).read_bytes() == DATA


def test_a_file_is_taken_in_by_a_link_or_a_copy(
    blobs: DiskBlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "rows.packed"
    source.write_bytes(DATA)
    assert blobs.take_in(REF, source).samefile(source)
    blobs.drop(REF.root)
    assert source.read_bytes() == DATA, "the file itself is not the store's to delete"

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    copied = blobs.take_in(REF, source)
    assert copied.read_bytes() == DATA
    assert not copied.samefile(source)
    assert blobs.begin(REF) == {0, 1, 2}
    blobs.close()


@pytest.mark.parametrize("content", [DATA[:-1], DATA + b"x", DATA[:5000] + b"x" + DATA[5001:]])
def test_a_file_of_other_bytes_is_not_taken_in(blobs: DiskBlobStore, tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "rows.packed"
    source.write_bytes(content)
    with pytest.raises(IntegrityError, match="not the file that the run's manifest names"):
        blobs.take_in(REF, source)
    assert not blobs.path(REF.root).exists()
    with pytest.raises(IntegrityError, match="cannot be read"):
        blobs.take_in(REF, tmp_path / "nowhere")


def test_a_new_download_begins_without_reading_its_holes(blobs: DiskBlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = blob_of(bytes(10_000), 4096)
    monkeypatch.setattr(DiskBlobStore, "read", lambda *_: pytest.fail("gigabytes would be hashed"))
    assert blobs.begin(zeros) == set()
    blobs.close()
