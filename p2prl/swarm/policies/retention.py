"""Retention of policy versions: keep the newest ones within the disk quota, and free the blobs of the others. Pure."""

from __future__ import annotations

from collections.abc import Collection

from p2prl.protocol.digests import Digest
from p2prl.swarm.gossip.forwarding import Gossip
from p2prl.swarm.policies.catalog import PolicyCatalog, PolicyVersion, roots_of
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
