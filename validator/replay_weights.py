"""Weights for replays: the policies on disk, those requested, and the one in the scorer."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from p2prl.models.scorer_port import Scorer
from p2prl.net.storage.held_weights import read_weights
from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import PolicyManifest

_PATIENCE_S = 30.0
"""How long groups wait for the weights of their policy before they are dropped."""


class ReplayWeights:
    """Policies by the digest of their manifest's envelope."""

    def __init__(self) -> None:
        self._on_disk: dict[Digest, tuple[PolicyManifest, Path]] = {}
        self._asked_at: dict[Digest, float] = {}
        self._loaded: Digest | None = None
        self._is_free = False  # the scorer's memory

    def __contains__(self, policy: Digest) -> bool:
        """Whether the weights are on disk."""
        return policy in self._on_disk

    @property
    def newest_version(self) -> int:
        """Newest version on disk; −1 before the first."""
        return max((manifest.version for manifest, _ in self._on_disk.values()), default=-1)

    @property
    def newest_step(self) -> int:
        """Learner step of the newest version on disk; 0 before the first."""
        return max((manifest.step for manifest, _ in self._on_disk.values()), default=0)

    def add(self, policy: Digest, manifest: PolicyManifest, path: Path) -> None:
        """The weights of a policy are on disk."""
        self._on_disk[policy] = (manifest, path)
        self._asked_at.pop(policy, None)

    def manifest_of(self, policy: Digest) -> PolicyManifest:
        """The manifest of a policy that is on disk."""
        return self._on_disk[policy][0]

    def load(self, scorer: Scorer, policy: Digest) -> bool:
        """Load a policy on disk into the scorer. False if it is gone; raises `IntegrityError` if it is
        damaged."""
        if self._loaded == policy:
            return True
        self._is_free = False
        self._loaded = None  # after a failure, the scorer may no longer hold the previous policy
        try:
            scorer.load_weights(read_weights(self._on_disk[policy][1]))
        except FileNotFoundError:
            del self._on_disk[policy]
            return False
        self._loaded = policy
        return True

    def free(self, scorer: Scorer) -> None:
        """Free the scorer's memory until the next `load`."""
        if not self._is_free:
            self._is_free, self._loaded = True, None
            scorer.sleep()

    def ask(self, policy: Digest, now: float) -> bool:
        """Note that a policy is missing. True the first time: request it from the network."""
        if policy in self._asked_at:
            return False
        self._asked_at[policy] = now
        return True

    def is_overdue(self, policy: Digest, now: float) -> bool:
        """Whether a policy was requested too long ago."""
        return now - self._asked_at[policy] > _PATIENCE_S

    def stop_waiting(self, policy: Digest) -> None:
        """Forget that a policy was requested."""
        del self._asked_at[policy]

    def forget_requests(self, *, besides: Collection[Digest]) -> None:
        """Forget the requests for all other policies: no group waits for them, and groups may name any."""
        self._asked_at = {policy: at for policy, at in self._asked_at.items() if policy in besides}
