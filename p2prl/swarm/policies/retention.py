"""Room for versions: which are kept, what gives way, and what may be written in vain. Pure.

A version costs at most twice its weights in writes: patches are smaller than the weights together, and the decoded
weights are written once. A route whose patches hash to their names and do not lead to the signed weights costs as much
for nothing, and a learner can sign any number of them. What honest versions leave of their share pays for failures.
"""

from __future__ import annotations

from collections.abc import Collection

from p2prl.protocol.digests import Digest
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import BlobRef
from p2prl.swarm.disk_quota import DiskQuota
from p2prl.swarm.gossip.forwarding import Gossip
from p2prl.swarm.policies.catalog import PolicyCatalog, PolicyVersion, roots_of
from p2prl.swarm.policies.routing import RoutePlanner
from p2prl.swarm.relay.chunk_relay import Relay

VERSIONS_KEPT = {Role.VOLUNTEER: 4, Role.VALIDATOR: 64, Role.SEEDER: 4}
"""Newest policy versions a worker keeps on disk. A volunteer serves slower peers from them; a validator replays
groups that were sampled that many versions ago."""


class Retention:
    """Removes old versions from the catalog, the gossip and the disk."""

    def __init__(
        self,
        catalog: PolicyCatalog,
        planner: RoutePlanner,
        relay: Relay,
        gossip: Gossip,
        *,
        keep_versions: int,
    ) -> None:
        self._catalog = catalog
        self._planner = planner
        self._relay = relay
        self._gossip = gossip
        self._keep_versions = keep_versions

    def is_past(self, version: int) -> bool:
        """Whether a version is older than the versions kept."""
        newest = self._catalog.newest
        return newest is not None and version <= newest.manifest.version - self._keep_versions

    def apply(self, in_use: Collection[Digest], busy: Collection[Digest] = ()) -> list[PolicyVersion]:
        """Release old versions, and those beyond the quota; never the ones `in_use`. Returns them."""
        newest = self._catalog.newest
        assert newest is not None
        oldest = newest.manifest.version - self._keep_versions + 1
        released = self._catalog.forget_before(oldest, keep=in_use)
        for old in released:
            self._gossip.unpin(old.digest)
            self._free_blobs(old)
        self._planner.forget_before(oldest)
        return released + self.make_room(0, in_use, busy)

    def make_room(
        self, size_bytes: int, in_use: Collection[Digest], busy: Collection[Digest] = ()
    ) -> list[PolicyVersion]:
        """Release the oldest versions until this much more fits the quota, or only those `in_use` are left. Returns
        them.

        Then patches of the versions in use go too, except the `busy` ones, by their roots: they only served others.
        """
        released = []
        for policy in reversed(self._catalog.newest_first()):
            if not self._relay.quota.lacks(size_bytes):
                break
            if policy.digest not in in_use and any(map(self._relay.quota.holds, roots_of(policy.manifest))):
                self._free_blobs(policy)
                released.append(policy)
        for policy in reversed(self._catalog.newest_first()):
            for patch in policy.manifest.patches:
                if self._relay.quota.lacks(size_bytes) and patch.blob.root not in busy:
                    self._relay.drop(patch.blob.root)
        return released

    def _free_blobs(self, policy: PolicyVersion) -> None:
        """Drop the blobs of a version, except those another version shares."""
        for root in roots_of(policy.manifest):
            if not self._catalog.uses(root, besides=policy.digest):
                self._relay.drop(root)


WRITES_PER_VERSION = 2
"""Most that a version costs in writes, in sizes of the weights, failures aside."""

SPARE_WRITES = 4
"""The same for all failures beyond what honest versions have saved: two routes in a row, whatever they cost."""


class WriteAllowance:
    """Bytes that failed routes may still cost."""

    def __init__(self, weight_bytes: int) -> None:
        self._weight_bytes = weight_bytes
        self._spare_bytes = SPARE_WRITES * weight_bytes

    def allows(self, patch_bytes: int) -> bool:
        """Whether a route of this size may be tried: it may fail once all is written."""
        return patch_bytes + self._weight_bytes <= self._spare_bytes

    def failed(self, patch_bytes: int) -> None:
        """A route was decoded in vain."""
        self._spare_bytes -= patch_bytes + self._weight_bytes

    def completed(self, patch_bytes: int) -> None:
        """A version is complete, from patches of this size together, or from none."""
        saved_bytes = (WRITES_PER_VERSION - 1) * self._weight_bytes - patch_bytes
        self._spare_bytes = min(self._spare_bytes + max(0, saved_bytes), SPARE_WRITES * self._weight_bytes)


def most_written(weight_bytes: int, versions: int) -> int:
    """Most bytes that a node writes for this number of versions, with any manifests and patches."""
    return weight_bytes * (WRITES_PER_VERSION * versions + SPARE_WRITES)


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
