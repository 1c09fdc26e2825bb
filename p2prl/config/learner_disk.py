"""Disk that a learner needs for published weights, told before a run starts and checked at every start."""

from __future__ import annotations

import shutil
from pathlib import Path

from p2prl.config.machine_limits import held_bytes
from p2prl.errors import MachineError
from p2prl.learner.published_policies import versions_kept
from p2prl.protocol.manifests import DTYPE_BYTES, RunManifest
from p2prl.quantity_text import size_text

_WHOLE = 3
"""Weights once in the store, once as redo records while a version is written, and once as the copy of an older version
that groups are replayed with. Replayers map one more copy."""

_SHARE_16_BIT = 0.1
"""Patches of a version and their inverses, of its weights: .0045 for the short patch where one word in a hundred
changes, .025 where seven do, as much for its inverse, and the long patches of every fourth version together about as
much as the short ones."""

_SHARE_32_BIT = 2.0
"""The same in float32, of which nearly every word changes."""


def needed_bytes(manifest: RunManifest, *, replayers: int = 0) -> tuple[int, int]:
    """(the least, the most to expect) bytes of published weights on the learner's disk, checkpoints not included."""
    weights = manifest.weight_bytes
    whole = _WHOLE + (replayers > 0)
    share = _SHARE_32_BIT if DTYPE_BYTES[manifest.dtype] == 4 else _SHARE_16_BIT
    return whole * weights, int((whole + share * (versions_kept(manifest) + 2)) * weights)


def disk_text(manifest: RunManifest, *, replayers: int = 0) -> str:
    """One sentence for the owner of a new run."""
    least, most = needed_bytes(manifest, replayers=replayers)
    return (
        f"Published weights take {size_text(least)} to {size_text(most)} of this disk: {manifest.weight_bytes:,} bytes"
        f" a version, up to {versions_kept(manifest)} versions back, besides checkpoints."
    )


def check_disk(manifest: RunManifest, blobs: Path, *, replayers: int = 0) -> str:
    """`disk_text` of a run, once the disk of its folder of blobs has the least. `MachineError` otherwise."""
    least, _ = needed_bytes(manifest, replayers=replayers)
    there = next(path for path in (blobs, *blobs.absolute().parents) if path.exists())
    room = shutil.disk_usage(there).free + held_bytes(blobs)
    if room < least:
        raise MachineError(
            f"published weights need {size_text(least)} of disk in {blobs} and {size_text(room)} are free",
            remedy="Free some space, or move the run folder to a larger disk; nothing is lost.",
        )
    return disk_text(manifest, replayers=replayers)
