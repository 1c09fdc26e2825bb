"""Blob store on disk: weights and patches chunk by chunk, one file per blob, named by its root.

The file of an incomplete blob ends in `.part`; it gets its final name once its last chunk is verified and on disk.
Beside each is its hash tree. After a restart nothing is trusted: every chunk is hashed again, and its proof followed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Set as AbstractSet
from pathlib import Path

from p2prl.disk_full import write_error
from p2prl.errors import IntegrityError
from p2prl.net.storage.tree_files import TreeFiles
from p2prl.protocol.digests import DIGEST_BYTES, Digest, chunk_digest
from p2prl.protocol.hash_tree import TreeBuilder, bound_top, level_sizes, proof_among, top_of
from p2prl.protocol.manifests import BlobRef, listed_nodes, tree_of

_BLOB_FILE = re.compile(r"[0-9a-f]{64}(\.[a-z-]+)?")
"""A blob's file name, with the suffix of an unfinished blob or of a file kept beside it."""


class DiskBlobStore:
    """A `BlobStore` in one directory. One process writes; others may read complete blobs by path."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trees = TreeFiles(directory)
        """Hash trees of the blobs."""
        self._files: dict[Digest, int] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(error, f"in {directory}") from error

    def path(self, root: bytes) -> Path:
        """Path of a complete blob."""
        return self.directory / root.hex()

    def adopt(self, ref: BlobRef, nodes: bytes, made: Path) -> Path:
        """Take a file made on this machine, already on disk, as a complete blob, and return the blob's path.

        `nodes` are those of its tree.
        """
        path = self.path(ref.root)
        try:
            self.trees.save(ref.root, nodes)
            made.rename(path)
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error
        return path

    def add(self, ref: BlobRef, data: bytes | memoryview) -> Path:
        """Write a complete blob made on this machine and return its path. It survives a crash once this returns."""
        path = self.path(ref.root)
        part = path.with_suffix(".new")
        try:
            self.trees.save(ref.root, tree_of(data, ref.chunk_bytes)[1])
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.rename(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise write_error(error, f"in {self.directory}") from error
        return path

    def keep_as(self, root: Digest, name: Digest) -> None:
        """Also keep a complete blob's bytes under another name, even when the blob is dropped; no-op if it is gone.

        Uses a hard link where the file system supports it, which costs nothing while the blob exists. A file of another
        size, as a power cut may leave, is replaced.
        """
        path, other = self.path(root), self.path(name)
        if not path.exists() or (other.exists() and other.stat().st_size == path.stat().st_size):
            return
        self._link(path, other)

    def take_in(self, ref: BlobRef, source: Path) -> Path:
        """Serve a file of this machine as a complete blob, and return the blob's path.

        A hard link where the file system supports it: data of gigabytes is neither copied nor read into memory.
        `IntegrityError` when the file does not have the blob's bytes.
        """
        path = self.path(ref.root)
        try:
            with source.open("rb") as file:
                fits = os.fstat(file.fileno()).st_size == ref.size_bytes
                nodes = _nodes_of(file.fileno(), ref) if fits else b""
            linked = path.exists() and path.samefile(source)
        except OSError as error:
            raise IntegrityError(f"{source} cannot be read: {error.strerror}") from error
        if not _is_tree_of(ref, nodes):
            raise IntegrityError(f"{source} is not the file that the run's manifest names")
        self._save_tree(ref, nodes)
        if not linked:
            self._link(source, path)
        return path

    def _link(self, path: Path, other: Path) -> None:
        """Give a file another name, or copy it where the file system has no hard links."""
        try:
            other.unlink(missing_ok=True)
            os.link(path, other)
        except OSError:
            part = other.with_suffix(".new")
            try:
                with path.open("rb") as source, part.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
                    copy.flush()
                    os.fsync(copy.fileno())
                part.rename(other)
            except OSError as error:
                part.unlink(missing_ok=True)
                raise write_error(error, f"in {self.directory}") from error

    def begin(self, ref: BlobRef) -> AbstractSet[int]:
        path = self.path(ref.root)
        part = path.with_suffix(".part")
        empty = not path.exists() and not part.exists()
        complete = path.exists() and path.stat().st_size == ref.size_bytes
        try:
            if isinstance(ref.tree, tuple) and not self.trees.is_whole(ref):
                self.trees.save(ref.root, listed_nodes(ref.tree))
            file = os.open(path if path.exists() else part, os.O_RDWR | os.O_CREAT, 0o600)
            os.truncate(file, ref.size_bytes)
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error
        before = self._files.get(ref.root)
        if before is not None:
            os.close(before)
        self._files[ref.root] = file
        if empty:
            return set()  # gigabytes of holes need no hashing
        return self._verified(ref, file, complete=complete)

    def _verified(self, ref: BlobRef, file: int, *, complete: bool) -> AbstractSet[int]:
        """The chunks that are intact and can be proved. A complete blob needs no tree for that: it gives one."""
        if complete:
            nodes = _nodes_of(file, ref)
            if _is_tree_of(ref, nodes):
                if self.trees.nodes(ref.root) != nodes:
                    self._save_tree(ref, nodes)
                return frozenset(range(ref.total))
        known = self.trees.nodes(ref.root).ljust(DIGEST_BYTES * sum(level_sizes(ref.total)), b"\0")
        present: set[int] = set()
        for index in range(ref.total):
            proof = proof_among(known, index, ref.total)
            nodes_told = (proof[start : start + DIGEST_BYTES] for start in range(0, len(proof), DIGEST_BYTES))
            # Who lacks a node of its proof never came: holes need no hashing.
            if all(map(any, nodes_told)) and ref.proves(index, self.read(ref, index), proof):
                present.add(index)
        return present

    def _save_tree(self, ref: BlobRef, nodes: bytes) -> None:
        try:
            self.trees.save(ref.root, nodes)
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error

    def write(self, ref: BlobRef, index: int, data: bytes, proof: bytes) -> None:
        try:
            os.pwrite(self._files[ref.root], data, ref.span(index)[0])
            self.trees.note(ref, index, proof)
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error

    def ready(self, ref: BlobRef, index: int) -> bool:  # noqa: ARG002 - a file
        return True

    def read(self, ref: BlobRef, index: int) -> bytes:
        offset, length = ref.span(index)
        return os.pread(self._files[ref.root], length, offset)

    def proof(self, ref: BlobRef, index: int) -> bytes:
        return self.trees.proof(ref, index)

    def room(self, ref: BlobRef) -> int:
        return ref.size_bytes

    def finish(self, ref: BlobRef) -> None:
        path = self.path(ref.root)
        part = path.with_suffix(".part")
        if part.exists():
            try:
                os.fsync(self._files[ref.root])
                part.rename(path)
            except OSError as error:
                raise write_error(error, f"in {self.directory}") from error

    def drop(self, root: Digest) -> None:
        file = self._files.pop(root, None)
        if file is not None:
            os.close(file)
        self.path(root).unlink(missing_ok=True)
        self.path(root).with_suffix(".part").unlink(missing_ok=True)
        self.trees.drop(root)

    def keep_only(self, names: AbstractSet[bytes]) -> None:
        """Delete every other blob, complete or not, that an earlier process left here.

        Open blobs stay, and so do files that are not named like blobs. A file that cannot be deleted costs only space.
        """
        kept = {name.hex() for name in (*names, *self._files)}
        with contextlib.suppress(OSError):
            for path in self.directory.iterdir():
                if _BLOB_FILE.fullmatch(path.name) and path.name.partition(".")[0] not in kept and path.is_file():
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close every file; nothing is deleted."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()


def _nodes_of(file: int, ref: BlobRef) -> bytes:
    """Nodes of the tree over the chunks of a file with the blob's size."""
    spans = map(ref.span, range(ref.total))
    return TreeBuilder(chunk_digest(os.pread(file, length, offset)) for offset, length in spans).nodes


def _is_tree_of(ref: BlobRef, nodes: bytes) -> bool:
    return bool(nodes) and bound_top(ref.size_bytes, ref.chunk_bytes, top_of(nodes)) == ref.tree_hash
