"""File operations of the weight store, each in one place: tests replace them to stop a process at any of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from p2prl.patches.words import Words


class StoreFiles:
    """Writes files. Nothing else in the weight store changes a disk."""

    def create(self, path: Path) -> BinaryIO:
        """A new, empty file to append to."""
        return path.open("wb")

    def append(self, file: BinaryIO, data: bytes | memoryview) -> None:
        """Add bytes at the end of a file."""
        file.write(data)

    def finish(self, file: BinaryIO) -> None:
        """Close a file whose bytes survive a power cut from now on."""
        file.flush()
        os.fsync(file.fileno())
        file.close()

    def rename(self, path: Path, name: Path) -> None:
        """Give a file its name, replacing another."""
        path.rename(name)

    def link(self, path: Path, other: Path) -> None:
        """Give a file another name beside its own, or instead of it where the file system has no hard links."""
        try:
            os.link(path, other)
        except OSError:
            path.rename(other)

    def sync_names(self, directory: Path) -> None:
        """The names of the files in a folder survive a power cut from now on."""
        folder = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def unlink(self, path: Path) -> None:
        """Delete a file if it is there."""
        path.unlink(missing_ok=True)

    def write_words(self, segment: Words, positions: Words | slice, values: Words) -> None:
        """Overwrite words of a segment of the mapped weights."""
        segment[positions] = values

    def sync_words(self, words: Words) -> None:
        """The mapped words survive a power cut from now on."""
        words.flush()  # type: ignore[attr-defined]  # a memmap


class UnsyncedFiles(StoreFiles):
    """Files that outlive their process and not a power cut: for simulations, which cut no power."""

    def finish(self, file: BinaryIO) -> None:
        """Close it."""
        file.close()

    def sync_names(self, directory: Path) -> None:
        """Do nothing."""

    def sync_words(self, words: Words) -> None:
        """Do nothing."""
