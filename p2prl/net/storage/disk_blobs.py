"""Blob store on disk: weights and patches chunk by chunk, one file per blob, named by its root.

The file of an incomplete blob ends in `.part`; it gets its final name once its last chunk is verified and on disk.
After a restart nothing is trusted: every chunk is hashed again.
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
from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.manifests import BlobRef

_BLOB_FILE = re.compile(r"[0-9a-f]{64}(\.[a-z-]+)?")
"""A blob's file name, with the suffix of an unfinished blob or of a file kept beside it."""


class DiskBlobStore:
    """A `BlobStore` in one directory. One process writes; others may read complete blobs by path."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[Digest, int] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(error, f"in {directory}") from error

    def path(self, root: bytes) -> Path:
        """Path of a complete blob."""
        return self.directory / root.hex()

    def adopt(self, ref: BlobRef, made: Path) -> Path:
        """Take a file made on this machine, already on disk, as a complete blob, and return the blob's path."""
        path = self.path(ref.root)
        try:
            made.rename(path)
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error
        return path

    def add(self, ref: BlobRef, data: bytes | memoryview) -> Path:
        """Write a complete blob made on this machine and return its path. It survives a crash once this returns."""
        path = self.path(ref.root)
        part = path.with_suffix(".new")
        try:
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
                same = os.fstat(file.fileno()).st_size == ref.size_bytes and all(
                    chunk_digest(file.read(ref.span(index)[1])) == chunk for index, chunk in enumerate(ref.chunks)
                )
            linked = path.exists() and path.samefile(source)
        except OSError as error:
            raise IntegrityError(f"{source} cannot be read: {error.strerror}") from error
        if not same:
            raise IntegrityError(f"{source} is not the file that the run's manifest names")
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
        """See `BlobStore.begin`."""
        path = self.path(ref.root)
        part = path.with_suffix(".part")
        empty = not path.exists() and not part.exists()
        try:
            file = os.open(path if path.exists() else part, os.O_RDWR | os.O_CREAT, 0o600)
            os.truncate(file, ref.size_bytes)
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error
        before = self._files.get(ref.root)
        if before is not None:
            os.close(before)
        self._files[ref.root] = file
        present: set[int] = set()
        for index, chunk in enumerate(() if empty else ref.chunks):  # gigabytes of holes need no hashing
            if chunk_digest(self.read(ref, index)) == chunk:
                present.add(index)
        return present

    def write(self, ref: BlobRef, index: int, data: bytes) -> None:
        """See `BlobStore.write`."""
        try:
            os.pwrite(self._files[ref.root], data, ref.span(index)[0])
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error

    def ready(self, ref: BlobRef, index: int) -> bool:  # noqa: ARG002 - a file
        """See `BlobStore.ready`."""
        return True

    def read(self, ref: BlobRef, index: int) -> bytes:
        """See `BlobStore.read`."""
        offset, length = ref.span(index)
        return os.pread(self._files[ref.root], length, offset)

    def finish(self, ref: BlobRef) -> None:
        """See `BlobStore.finish`."""
        path = self.path(ref.root)
        part = path.with_suffix(".part")
        if part.exists():
            try:
                os.fsync(self._files[ref.root])
                part.rename(path)
            except OSError as error:
                raise write_error(error, f"in {self.directory}") from error

    def drop(self, root: Digest) -> None:
        """See `BlobStore.drop`."""
        file = self._files.pop(root, None)
        if file is not None:
            os.close(file)
        self.path(root).unlink(missing_ok=True)
        self.path(root).with_suffix(".part").unlink(missing_ok=True)

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
