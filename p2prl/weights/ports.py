"""What a weight file needs of a file system: a port small enough that a test can crash it after every call.

Names are those of files in the weight file's own directory. Only `sync` and `sync_directory` promise anything across
a power cut: before them, writes may reach the disk in any order, in part, or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """The files of one directory. `MachineError` when the disk is full or refuses."""

    def path(self, name: str) -> Path:
        """Where a file lies, for readers that open it themselves."""

    def names(self) -> set[str]:
        """The files there are."""

    def mapped(self, name: str) -> memoryview:
        """A file's bytes as they are now, read-only and not copied; `overwrite` shows through."""

    def write(self, name: str, data: bytes) -> None:
        """Make a file, or replace all it held."""

    def append(self, name: str, data: bytes) -> None:
        """Add to the end of a file: all of `data`, or nothing when it fails."""

    def truncate(self, name: str, size_bytes: int) -> None:
        """Cut a file's end off."""

    def overwrite(self, name: str, offset: int, data: memoryview) -> None:
        """Replace bytes in the midst of a file."""

    def sync(self, name: str) -> None:
        """Return once a file's bytes would survive a power cut."""

    def sync_directory(self) -> None:
        """Return once every name made, moved or removed so far would survive a power cut."""

    def rename(self, old: str, new: str) -> None:
        """Move a file to another name, replacing what was there, in one step."""

    def take(self, path: Path, name: str) -> None:
        """Move a file from elsewhere into the directory."""

    def remove(self, name: str) -> None:
        """Delete a file, which need not exist."""
