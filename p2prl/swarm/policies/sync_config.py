"""What a node wants of its run, and what the versions cost that came."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncConfig:
    """What a node wants of a run."""

    policies: bool = True
    """Run files and the newest weights; a learner and a board only keep the books."""
    rebuilds: bool = False
    """Its owner decodes patches; otherwise weights are fetched whole."""
    awaits_base: bool = False
    """Its owner may have weights to start from, and says so first (`PolicySync.start_from`)."""
    carries: bool = False
    """It fetches every patch of a new version to serve it, whether or not it needs it: a seeder."""
    keep_versions: int = 4
    """Newest versions kept and served."""
    disk_bytes: int = 0
    """Most bytes of weights and patches kept, as far as what is in use allows; 0 sets no bound but `keep_versions`."""


@dataclass(slots=True)
class FetchStats:
    """What the versions cost that came here."""

    patch_bytes: int = 0
    """Bytes of the patches they were rebuilt from."""
    whole_bytes: int = 0
    """Bytes of those that were fetched whole."""
    brought_bytes: int = 0
    """What all of them would have cost whole."""
    spared_bytes: int = 0
    """What they would have cost more without the owner's base."""
