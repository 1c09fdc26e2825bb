"""Disk, memory and download a run needs of a worker, from its manifest.

The manifest's figures bind its learner: weights of another size are refused before a byte of them is fetched
(`p2prl.swarm.policies.catalog`), and so is a model of another size before memory is allocated (`p2prl.models`).
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import DTYPE_BYTES, RunManifest
from p2prl.protocol.run_blobs import data_blobs
from p2prl.swarm.policies.retention import VERSIONS_KEPT, most_written

SPARSE_PATCHES = 40
"""A patch takes at most one part in this many of the weights where at most 7 % of bf16 words change: those are written
over the version before, which then takes no more than an inverse patch. Where more changes, fewer versions fit."""

SMALL_RUN_BYTES = 1_000_000_000
"""Room in which every version may be whole. Small models are trained at rates at which most words change."""

PROGRAM_BYTES = 600_000_000
"""Memory of Python, torch and the network process before any model: 410 MB and 120 MB were measured on Linux."""

SEEDER_BYTES = 300_000_000
"""The same without torch."""


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
    """On disk with the data, all kept versions and the patches between them, without a version on its way. Finished
    work is added while no learner is in reach."""
    memory_bytes: int
    """Of all processes together, without the KV cache, which grows with the slots decoded together."""
    engine_bytes: int = 0
    """Of those, the engine's weights: on a GPU they are in its memory."""

    def private_bytes(self, *, on_cpu: bool) -> int:
        """Memory that the kernel cannot take back: without the weights' file, which is only mapped."""
        program = self.memory_bytes - self.engine_bytes - self.weights_bytes
        return program + (self.engine_bytes if on_cpu else 0)

    def least_disk_bytes(self, *, has_base: bool = False) -> int:
        """On disk at least: two versions, so that one serves while the next arrives, and a base model the owner has."""
        return self.files_bytes + self.data_bytes + (3 if has_base else 2) * self.weights_bytes

    def most_written(self, versions: int) -> int:
        """Most bytes written to disk for the run's files and this number of policy versions, with any learner."""
        return self.files_bytes + self.data_bytes + most_written(self.weights_bytes, versions)

    @property
    def download_bytes(self) -> int:
        """Downloaded before the first completion can be sampled."""
        return self.files_bytes + self.data_bytes + self.weights_bytes


def requirements_of(manifest: RunManifest, role: Role, *, runs_code: bool = False) -> Requirements:
    """Estimate the requirements of a volunteer, validator or seeder of this run; `runs_code` as in `blobs_for`."""
    data = sum(file.blob.size_bytes for file in data_blobs(manifest, role, runs_code=runs_code))
    files = sum(file.blob.size_bytes for file in manifest.files)
    weights = manifest.weight_bytes
    engine = 0 if role is Role.SEEDER else manifest.parameters * DTYPE_BYTES[manifest.engine_dtype]
    return Requirements(
        files_bytes=files,
        data_bytes=data,
        weights_bytes=weights,
        disk_bytes=files + data + _versions_bytes(weights, VERSIONS_KEPT[role]),
        # The engine's weights in its own word type, and the file a newer version is read from.
        memory_bytes=(SEEDER_BYTES if role is Role.SEEDER else PROGRAM_BYTES) + engine + weights,
        engine_bytes=engine,
    )


def _versions_bytes(weights_bytes: int, kept: int) -> int:
    """Room for versions that are kept: the weights once, once more beside them while an engine reads the file, each
    version's patch to pass on, and an inverse patch to each older one; or all whole, if that is little."""
    patched = 2 * weights_bytes + (2 * kept - 1) * weights_bytes // SPARSE_PATCHES
    return min(kept * weights_bytes, max(patched, SMALL_RUN_BYTES))
