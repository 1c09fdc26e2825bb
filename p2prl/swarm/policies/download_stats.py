"""Download volume of policy versions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DownloadStats:
    """Download volume of the versions that completed."""

    patch_bytes: int = 0
    """Bytes of the patches versions were rebuilt from."""
    full_bytes: int = 0
    """Bytes of versions downloaded as full weights."""
    version_bytes: int = 0
    """Bytes all completed versions would have cost as full weights."""
    saved_bytes: int = 0
    """Extra bytes they would have cost without the owner's local base."""

    def add(self, size_bytes: int, decoded_bytes: int | None, saved_bytes: int) -> None:
        """Count a completed version of this size, rebuilt from patches of `decoded_bytes`, or None for none."""
        self.patch_bytes += decoded_bytes or 0
        self.full_bytes += size_bytes if decoded_bytes is None else 0
        self.version_bytes += size_bytes
        self.saved_bytes += saved_bytes
