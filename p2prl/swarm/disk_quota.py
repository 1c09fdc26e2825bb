"""Quota of everything a node stores: one bound on the sum of weights, patches, files, data and group bodies. Pure.

A name is reserved with its full size before the first byte of it is requested. So a manifest that names more than the
owner allowed costs nothing, however it splits the excess over versions, patches and files.
"""

from __future__ import annotations

from p2prl.errors import MachineError


class DiskQuota:
    """Bytes reserved by name, and the most that may be reserved together."""

    def __init__(self, limit_bytes: int = 0) -> None:
        """A limit of 0 bounds nothing: a learner's own run, a simulation."""
        self._limit_bytes = limit_bytes
        self._reserved: dict[bytes, int] = {}
        self._sum_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Everything reserved."""
        return self._sum_bytes

    @property
    def names(self) -> frozenset[bytes]:
        """Every name that may be on disk."""
        return frozenset(self._reserved)

    def set_limit(self, limit_bytes: int) -> None:
        """Replace the limit. What is reserved stays."""
        self._limit_bytes = limit_bytes

    def holds(self, name: bytes) -> bool:
        """Whether a name is reserved."""
        return name in self._reserved

    def lacks(self, size_bytes: int) -> int:
        """Bytes to release before this much more fits; 0 when it fits."""
        return max(0, self._sum_bytes + size_bytes - self._limit_bytes) if self._limit_bytes else 0

    def reserve(self, name: bytes, size_bytes: int) -> None:
        """Reserve a name once; again changes nothing. `MachineError` when there is no room."""
        if name in self._reserved:
            return
        if self.lacks(size_bytes):
            raise MachineError(
                f"{size_bytes:,} more bytes of this run do not fit the {self._limit_bytes:,} bytes of disk it may use",
                remedy="Give it more with --disk-gb.",
            )
        self._reserved[name] = size_bytes
        self._sum_bytes += size_bytes

    def resize(self, name: bytes, size_bytes: int) -> None:
        """A reserved name takes this much now; no-op when it is not reserved."""
        if name in self._reserved:
            self._sum_bytes += size_bytes - self._reserved[name]
            self._reserved[name] = size_bytes

    def release(self, name: bytes) -> None:
        """Free a name; no-op when it is not reserved."""
        self._sum_bytes -= self._reserved.pop(name, 0)
