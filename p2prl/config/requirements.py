"""Disk, memory and download a run needs of a worker: estimates from its manifest, and a check of the free disk.

The manifest's figures bind its learner: weights of another size are refused before a byte of them is fetched
(`p2prl.swarm.policies.catalog`), and so is a model of another size before memory is allocated (`p2prl.models`).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from p2prl.errors import ConfigError, MachineError
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import DTYPE_BYTES, RunManifest
from p2prl.protocol.run_blobs import data_blobs
from p2prl.swarm.policies.write_allowance import most_written

VERSIONS_KEPT = {Role.VOLUNTEER: 4, Role.VALIDATOR: 64, Role.SEEDER: 4}
"""Newest policy versions a worker keeps on disk. A volunteer serves slower peers from them; a validator replays
groups that were sampled that many versions ago."""

_PROGRAM_BYTES = 600_000_000
"""Memory of Python, torch and the network process before any model: 410 MB and 120 MB were measured on Linux."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirements:
    """Estimates, in bytes."""

    files_bytes: int
    """Configuration and tokenizer, downloaded once."""
    data_bytes: int
    """Rows of data tasks, as far as the role needs them, downloaded once."""
    weights_bytes: int
    """Full weights of one policy version."""
    disk_bytes: int
    """On disk with the data and all kept versions, without the patches between them. Finished work is added while no
    learner is in reach."""
    memory_bytes: int
    """Of all processes together, without the KV cache, which grows with the slots decoded together."""

    def most_written(self, versions: int) -> int:
        """Most bytes written to disk for the run's files and so many policy versions, whatever its learner does."""
        return self.files_bytes + self.data_bytes + most_written(self.weights_bytes, versions)

    @property
    def download_bytes(self) -> int:
        """Downloaded before the first completion can be sampled."""
        return self.files_bytes + self.data_bytes + self.weights_bytes


def requirements_of(manifest: RunManifest, role: Role, *, runs_code: bool = False) -> Requirements:
    """Estimate the requirements of a volunteer or validator of this run; `runs_code` as in `blobs_for`."""
    data = sum(file.blob.size_bytes for file in data_blobs(manifest, role, runs_code=runs_code))
    files = sum(file.blob.size_bytes for file in manifest.files)
    weights = manifest.weight_bytes
    return Requirements(
        files_bytes=files,
        data_bytes=data,
        weights_bytes=weights,
        disk_bytes=files + data + VERSIONS_KEPT[role] * weights,
        # The engine's weights in its own word type, and the file a newer version is read from.
        memory_bytes=_PROGRAM_BYTES + manifest.parameters * DTYPE_BYTES[manifest.engine_dtype] + weights,
    )


def check_room(needs: Requirements, directory: Path) -> None:
    """Raise `MachineError` when the disk of `directory` has no space for two versions.

    Bytes that `directory` holds already count as free.
    """
    try:
        free = shutil.disk_usage(directory).free
        held = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    except OSError:
        return  # the first write to it reports what is wrong
    least = needs.files_bytes + needs.data_bytes + 2 * needs.weights_bytes
    if free + held < least:
        raise MachineError(
            f"this run needs {size_text(least)} of disk in {directory} and {size_text(free + held)} are free",
            remedy="Free some, or set P2PRL_HOME to a folder on a larger disk.",
        )


def check_cap(needs: Requirements, disk_gb: float) -> None:
    """Raise `ConfigError` when the data alone is larger than the user's `--disk-gb`; 0 is no cap."""
    if disk_gb and needs.data_bytes > int(disk_gb * 1e9):
        raise ConfigError(
            f"this run's data has {size_text(needs.data_bytes)}, and --disk-gb allows {size_text(disk_gb * 1e9)} for "
            "data and weights together",
            remedy="Give --disk-gb more than the data, or leave it out: 0 sets no cap. Without its data no work of the "
            "run can be done.",
        )


def size_text(size_bytes: float) -> str:
    """A size for people, in the unit that leaves up to three digits before the point."""
    for unit in ("B", "kB", "MB"):
        if size_bytes < 999.5:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 100 else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.1f} GB"
