"""The file system as it is: `ports.Files` on one directory of the disk."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2prl.errors import MachineError


class DiskFiles:
    """See `ports.Files`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with self._explained():
            directory.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        return self._directory / name

    def names(self) -> set[str]:
        with self._explained():
            return {entry.name for entry in self._directory.iterdir() if entry.is_file()}

    def mapped(self, name: str) -> memoryview:
        with self._opened(name, os.O_RDONLY) as file:
            if os.fstat(file).st_size == 0:
                return memoryview(b"")  # no operating system maps an empty file
            return memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))

    def write(self, name: str, data: bytes) -> None:
        with self._opened(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            _write_all(file, memoryview(data))

    def append(self, name: str, data: bytes) -> None:
        with self._opened(name, os.O_WRONLY | os.O_APPEND) as file:
            before = os.fstat(file).st_size
            try:
                _write_all(file, memoryview(data))
            except OSError:
                os.ftruncate(file, before)  # half a record would hide every later one
                raise

    def truncate(self, name: str, size_bytes: int) -> None:
        with self._opened(name, os.O_WRONLY) as file:
            os.ftruncate(file, size_bytes)

    def overwrite(self, name: str, offset: int, data: memoryview) -> None:
        # Not through a writable map: a full disk would then be a signal that ends the process, not an error.
        with self._opened(name, os.O_WRONLY) as file:
            os.lseek(file, offset, os.SEEK_SET)
            _write_all(file, data)

    def sync(self, name: str) -> None:
        with self._opened(name, os.O_RDONLY) as file:
            os.fsync(file)

    def sync_directory(self) -> None:
        with self._opened(".", os.O_RDONLY) as directory:
            os.fsync(directory)

    def rename(self, old: str, new: str) -> None:
        with self._explained():
            self.path(old).replace(self.path(new))

    def take(self, path: Path, name: str) -> None:
        with self._explained():
            try:
                path.replace(self.path(name))
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                shutil.copyfile(path, self.path(name))  # another disk: there is no moving without a copy
                path.unlink()

    def remove(self, name: str) -> None:
        with self._explained():
            self.path(name).unlink(missing_ok=True)

    @contextmanager
    def _opened(self, name: str, flags: int) -> Iterator[int]:
        with self._explained():
            file = os.open(self.path(name), flags, 0o600)
            try:
                yield file
            finally:
                os.close(file)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise MachineError(
                    f"no space left in {self._directory}",
                    remedy="Free some space and start again; the weights go on from where they are.",
                ) from error
            raise MachineError(
                f"cannot work in {self._directory}: {error.strerror}",
                remedy="Choose another directory or fix its permissions.",
            ) from error


def _write_all(file: int, data: memoryview) -> None:
    """A system call may take less than it is given."""
    while data:
        data = data[os.write(file, data) :]
