"""Room for versions: what may be stored beside what is there, what gives way, and what may be written in vain. Pure."""

from __future__ import annotations

from collections.abc import Collection

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import BlobRef
from p2prl.swarm.disk_quota import DiskQuota
from p2prl.swarm.policies.catalog import PolicyVersion
from p2prl.swarm.policies.retention import Retention
from p2prl.swarm.policies.write_allowance import WriteAllowance

_WAITING = 256
"""Requested versions remembered while there is no room for them."""


class DiskRoom:
    """Room on one node's disk for versions of one run."""

    def __init__(self, retention: Retention, quota: DiskQuota, weight_bytes: int) -> None:
        """`weight_bytes` is the size of every version's weights."""
        self.retention = retention
        self.allowance = WriteAllowance(weight_bytes)
        self._quota = quota
        self._weight_bytes = weight_bytes
        self._waiting: dict[Digest, PolicyVersion] = {}
        self._full_at: tuple[Digest, int] | None = None

    def make(
        self,
        target: PolicyVersion,
        patches: Collection[BlobRef],
        *,
        is_newest: bool,
        in_use: Collection[Digest],
        busy: Collection[Digest],
    ) -> tuple[bool, list[PolicyVersion]]:
        """Make room for a version and these patches; returns whether there is, and the versions that gave way.

        A requested version leaves room for the newest. `in_use` and `busy` as in `Retention.make_room`.
        """
        size = sum(ref.size_bytes for ref in patches if not self._quota.holds(ref.root))
        if not self._quota.holds(target.manifest.weights.root):
            size += self._weight_bytes
        if not is_newest:
            size += self._weight_bytes
        released = self.retention.make_room(size, in_use, {*busy, *(ref.root for ref in patches)})
        return not self._quota.lacks(size), released

    def mirrors(self, patch: BlobRef) -> bool:
        """Whether a patch fits that only serves others: it leaves room for the next version, and nothing gives way."""
        return not self._quota.lacks(patch.size_bytes + 2 * self._weight_bytes)

    def reserve(self, target: PolicyVersion) -> None:
        """Reserve room for weights that the owner is about to decode."""
        self._quota.reserve(target.manifest.weights.root, self._weight_bytes)

    def put_off(self, policy: PolicyVersion, *, is_newest: bool) -> None:
        """There is no room for a version now."""
        if is_newest:
            self._full_at = (policy.digest, self._quota.held_bytes)
            return
        self._waiting[policy.digest] = policy
        if len(self._waiting) > _WAITING:
            del self._waiting[next(iter(self._waiting))]

    def is_full_for(self, newest: PolicyVersion) -> bool:
        """Whether the newest version found no room, and as much is stored as then."""
        return self._full_at == (newest.digest, self._quota.held_bytes)

    def take_waiting(self) -> list[PolicyVersion]:
        """Requested versions that were put off, to try again."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting.values())
