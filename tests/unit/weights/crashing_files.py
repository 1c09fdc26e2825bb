"""A file system in memory that ends the process at any call, and forgets what was never made safe.

Harsher than a disk: bytes that were not synced come back in blocks of any mixture, and names that were not synced come
back in any selection, a later one without an earlier one too.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

_BLOCK_BYTES = 16


class Crashed(BaseException):
    """The process is no more. Not an `Exception`: nothing may catch it."""


@dataclass(eq=False)
class _Inode:
    live: bytearray = field(default_factory=bytearray)
    safe: bytes = b""


@dataclass(frozen=True)
class _Names:
    """Names set or (None) removed in one step."""

    changes: tuple[tuple[str, _Inode | None], ...]


class CrashingFiles:
    """See `p2prl.weights.ports.Files`."""

    def __init__(self, crash_at: int | None = None) -> None:
        """`crash_at` counts calls that change or sync something, from 0; that call happens by half, or not at all."""
        self.crash_at = crash_at
        self.calls = 0
        self._live: dict[str, _Inode] = {}
        self._safe: dict[str, _Inode] = {}
        self._unsafe: list[_Names] = []

    # --- after the crash ---------------------------------------------------------------------------------------

    def after_kill(self, crash_at: int | None = None) -> CrashingFiles:
        """What the next process finds when only the process died."""
        found = CrashingFiles(crash_at)
        found._live, found._safe, found._unsafe = copy.deepcopy((self._live, self._safe, self._unsafe))
        return found

    def after_power_cut(self, rng: np.random.Generator, crash_at: int | None = None) -> CrashingFiles:
        """What the next process finds when the machine went dark."""
        names = dict(self._safe)
        for step in self._unsafe:
            if rng.random() < 0.5:
                for name, inode in step.changes:
                    names.pop(name, None)
                    if inode is not None:
                        names[name] = inode
        found = CrashingFiles(crash_at)
        for name, inode in names.items():
            data = _mixture(inode, rng)
            found._live[name] = _Inode(bytearray(data), data)
        found._safe = dict(found._live)
        return found

    # --- the port ----------------------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        return Path("/nowhere") / name

    def names(self) -> set[str]:
        return set(self._live)

    def mapped(self, name: str) -> memoryview:
        return memoryview(self._live[name].live).toreadonly()

    def write(self, name: str, data: bytes) -> None:
        crashes = self._counted()
        inode = self._live.get(name)
        if inode is None:
            inode = _Inode()
            self._name((name, inode))
        inode.live = bytearray(data[: len(data) // 2] if crashes else data)
        self._end(crashes)

    def append(self, name: str, data: bytes) -> None:
        crashes = self._counted()
        inode = self._live[name]
        inode.live = inode.live + (data[: len(data) // 2] if crashes else data)
        self._end(crashes)

    def truncate(self, name: str, size_bytes: int) -> None:
        crashes = self._counted()
        if not crashes:
            self._live[name].live = self._live[name].live[:size_bytes]
        self._end(crashes)

    def overwrite(self, name: str, offset: int, data: memoryview) -> None:
        crashes = self._counted()
        part = bytes(data[: len(data) // 2] if crashes else data)
        self._live[name].live[offset : offset + len(part)] = part
        self._end(crashes)

    def sync(self, name: str) -> None:
        crashes = self._counted()
        if not crashes:
            self._live[name].safe = bytes(self._live[name].live)
        self._end(crashes)

    def sync_directory(self) -> None:
        crashes = self._counted()
        if not crashes:
            self._safe = dict(self._live)
            self._unsafe.clear()
        self._end(crashes)

    def rename(self, old: str, new: str) -> None:
        crashes = self._counted()
        if not crashes:
            self._name((new, self._live[old]), (old, None))
        self._end(crashes)

    def take(self, path: Path, name: str) -> None:
        crashes = self._counted()
        if not crashes:
            self._name((name, _Inode(bytearray(path.read_bytes()))))
        self._end(crashes)

    def remove(self, name: str) -> None:
        crashes = self._counted()
        if not crashes and name in self._live:
            self._name((name, None))
        self._end(crashes)

    # --- within ------------------------------------------------------------------------------------------------

    def spoil(self, name: str, offset: int) -> None:
        """Flip a byte on the disk, behind everybody's back."""
        self._live[name].live[offset] ^= 0xFF

    def _counted(self) -> bool:
        self.calls += 1
        return self.crash_at is not None and self.calls > self.crash_at

    def _end(self, crashes: bool) -> None:
        if crashes:
            raise Crashed

    def _name(self, *changes: tuple[str, _Inode | None]) -> None:
        for name, inode in changes:
            self._live.pop(name, None)
            if inode is not None:
                self._live[name] = inode
        self._unsafe.append(_Names(changes))


def _mixture(inode: _Inode, rng: np.random.Generator) -> bytes:
    """Blocks of what was safe and what was not, and a length of either."""
    live, safe = bytes(inode.live), inode.safe
    size = len(live) if rng.random() < 0.5 else len(safe)
    data = bytearray(size)
    for start in range(0, size, _BLOCK_BYTES):
        source = live if rng.random() < 0.5 else safe
        piece = source[start : min(start + _BLOCK_BYTES, size)]
        data[start : start + len(piece)] = piece
    return bytes(data)
