"""Retention of policy versions: how many are kept, the disk budget, shared blobs."""

from __future__ import annotations

import random

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import BlobRef, PolicyManifest, blob_of
from p2prl.swarm.disk_quota import DiskQuota
from p2prl.swarm.gossip.forwarding import Gossip, GossipConfig
from p2prl.swarm.policies.catalog import PolicyCatalog, PolicyVersion
from p2prl.swarm.policies.retention import Retention
from p2prl.swarm.policies.routing import LocalBase, RoutePlanner
from p2prl.swarm.relay.chunk_relay import Relay
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs

LEARNER = Identity(b"l" * 16)
SIZE_BYTES = 5_000


class Disk:
    """A catalog of versions whose weights are all on disk; the versions in `equal` have the same weights."""

    def __init__(
        self,
        versions: int,
        *,
        keep_versions: int,
        disk_bytes: int = 0,
        equal: tuple[int, ...] = (),
        store: MemoryBlobs | None = None,
    ) -> None:
        self.store = store or MemoryBlobs()
        self.gossip = Gossip(Role.VOLUNTEER, random.Random(1), GossipConfig())
        relay = Relay(self.store, random.Random(1), RelayConfig(), quota := DiskQuota())
        catalog = PolicyCatalog(LEARNER.public_key, SIZE_BYTES)
        planner = RoutePlanner(catalog, LocalBase(awaited=False), rebuilds=True)
        self.retention = Retention(catalog, planner, relay, self.gossip, keep_versions=keep_versions)
        self.versions: list[PolicyVersion] = []
        for version in range(versions):
            data = bytes((255 if version in equal else version,)) * SIZE_BYTES
            weights = blob_of(data, 4096)
            previous = self.versions[-1].digest if self.versions else Digest(b"")
            manifest = PolicyManifest(version, version, weights, bytes(32), previous, bytes(32), 0)
            opened = open_envelope(seal(LEARNER, manifest, run=bytes(32), now=1e9 + version), now=None)
            self.versions.append(catalog.admit(opened))
            self.gossip.pin(opened.raw, opened.digest)
            self.store.add(weights, data)
            relay.fetch(weights, 0.0)
        relay.measure()
        quota.set_limit(disk_bytes)

    def stored(self) -> list[int]:
        return [v.manifest.version for v in self.versions if self.store.holds(v.manifest.weights.root)]


def released(disk: Disk, *in_use: int) -> list[int]:
    return sorted(v.manifest.version for v in disk.retention.apply({disk.versions[number].digest for number in in_use}))


def test_the_newest_versions_are_kept_and_the_others_forgotten() -> None:
    disk = Disk(6, keep_versions=2)
    assert [disk.retention.is_past(version) for version in range(6)] == [True] * 4 + [False] * 2
    assert released(disk, 1) == [0, 2, 3], "version 1 is in use"
    assert disk.stored() == [1, 4, 5]
    assert [disk.gossip.is_new(version.digest) for version in disk.versions] == [True, False, True, True, False, False]


class Differences(MemoryBlobs):
    """Keeps all blobs but the newest as differences of a hundredth of their size."""

    def __init__(self) -> None:
        super().__init__()
        self.newest = b""

    def add(self, ref: BlobRef, data: bytes | memoryview) -> None:
        super().add(ref, data)
        self.newest = ref.root

    def room(self, ref: BlobRef) -> int:
        return ref.size_bytes if ref.root == self.newest else ref.size_bytes // 100


def test_versions_that_are_kept_as_differences_take_less_of_the_budget() -> None:
    disk = Disk(9, keep_versions=10, disk_bytes=SIZE_BYTES * 105 // 100, store=Differences())
    assert released(disk) == [0, 1, 2], "the newest whole, and five differences"
    assert disk.stored() == [3, 4, 5, 6, 7, 8]


def test_the_budget_drops_older_versions_that_are_not_in_use() -> None:
    disk = Disk(5, keep_versions=10, disk_bytes=2 * SIZE_BYTES + 1)
    assert released(disk, 0, 4) == [1, 2, 3], "those in use fill it"
    assert disk.stored() == [0, 4]


def test_a_blob_that_another_version_shares_stays() -> None:
    disk = Disk(3, keep_versions=1, equal=(0, 2))
    assert released(disk) == [0, 1]
    assert disk.stored() == [0, 2], "one blob, both versions"
