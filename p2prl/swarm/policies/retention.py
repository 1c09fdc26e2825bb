"""Retention of policy versions: keep the newest ones within the disk budget, and free the blobs of the others. Pure."""

from __future__ import annotations

from collections.abc import Collection

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import BlobRef
from p2prl.swarm.gossip.forwarding import Gossip
from p2prl.swarm.policies.catalog import PolicyCatalog, PolicyVersion, blobs_of, roots_of
from p2prl.swarm.policies.routing import RoutePlanner
from p2prl.swarm.relay.chunk_relay import Relay


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
        disk_bytes: int,
    ) -> None:
        """`disk_bytes` of 0 sets no budget."""
        self._catalog = catalog
        self._planner = planner
        self._relay = relay
        self._gossip = gossip
        self._keep_versions = keep_versions
        self._disk_bytes = disk_bytes

    def is_past(self, version: int) -> bool:
        """Whether a version is older than the versions kept."""
        newest = self._catalog.newest
        return newest is not None and version <= newest.manifest.version - self._keep_versions

    def apply(self, in_use: Collection[Digest]) -> list[PolicyVersion]:
        """Release old versions, and those the disk has no room for; never the ones `in_use`. Returns them."""
        newest = self._catalog.newest
        assert newest is not None
        oldest = newest.manifest.version - self._keep_versions + 1
        released = self._catalog.forget_before(oldest, keep=in_use)
        for old in released:
            self._gossip.unpin(old.digest)
            self._free_blobs(old)
        self._planner.forget_before(oldest)
        return released + (self._keep_within_budget(in_use) if self._disk_bytes else [])

    def _keep_within_budget(self, in_use: Collection[Digest]) -> list[PolicyVersion]:
        """Keep as many of the newest versions as fit; a version in use stays whatever it costs."""
        released = []
        room = self._disk_bytes
        for policy in self._catalog.newest_first():
            room -= sum(self._stored_bytes(ref) for ref in blobs_of(policy.manifest))
            if room < 0 and policy.digest not in in_use:
                self._free_blobs(policy)
                released.append(policy)
        return released

    def _stored_bytes(self, ref: BlobRef) -> int:
        have, total = self._relay.progress(ref.root)
        return ref.size_bytes * have // total if total else 0

    def _free_blobs(self, policy: PolicyVersion) -> None:
        """Drop the blobs of a version, except those another version shares."""
        for root in roots_of(policy.manifest):
            if not self._catalog.uses(root, besides=policy.digest):
                self._relay.drop(root)
