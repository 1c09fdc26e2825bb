"""Patches of a route by the manifests of its versions: all of them, or the first that its manifest contradicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import NO_BASE, BlobRef, Patch, PolicyManifest, blob_of
from p2prl.protocol.policy_head import PatchEdge
from p2prl.swarm.policies.catalog import PolicyCatalog
from p2prl.swarm.policies.version_download import patch_blobs

LEARNER = Identity(b"l" * 16)
WEIGHTS = blob_of(bytes(5_000), 4096)


def digest_of(version: int) -> Digest:
    """Digest of a version's weights."""
    return Digest(bytes([version]) * 32)


def patch_of(version: int) -> BlobRef:
    """The patch stream that leads to a version from the one before."""
    return blob_of(bytes([version]) * (100 + version), 4096)


@dataclass
class Published:
    """Versions 0 to 3 with a patch from the one before each, and the route through all of them."""

    catalog: PolicyCatalog
    manifests: list[Opened]
    route: tuple[PatchEdge, ...]


@pytest.fixture
def published() -> Published:
    catalog, manifests = PolicyCatalog(LEARNER.public_key, 5_000), list[Opened]()
    for version in range(4):
        base = (version - 1, digest_of(version - 1)) if version else (NO_BASE, b"")
        previous = manifests[-1].digest if manifests else b""
        patches = (Patch(*base, patch_of(version)),)
        body = PolicyManifest(version, version, WEIGHTS, digest_of(version), previous, bytes(32), 0, patches)
        manifests.append(open_envelope(seal(LEARNER, body, run=bytes(32), now=1e9 + version), now=None))
        catalog.admit(manifests[-1])
    route = tuple(PatchEdge(n, n - 1, patch_of(n).size_bytes, manifests[n].digest) for n in (1, 2, 3))
    return Published(catalog, manifests, route)


def test_the_patches_of_a_route_in_its_order(published: Published) -> None:
    assert patch_blobs(published.route, published.catalog) == (patch_of(1), patch_of(2), patch_of(3))
    assert patch_blobs((), published.catalog) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"manifest": bytes(32)},  # of a version that is not known
        {"base": 0},  # from which it has no patch
        {"version": 3},  # of another version than the manifest's
        {"size_bytes": 103},
    ],
)
def test_the_first_patch_that_its_manifest_contradicts_is_returned(
    published: Published, changes: dict[str, Any]
) -> None:
    wrong = msgspec.structs.replace(published.route[1], **changes)
    route = (published.route[0], wrong, msgspec.structs.replace(published.route[2], size_bytes=9))
    assert patch_blobs(route, published.catalog) == wrong


def test_a_patch_from_other_weights_than_its_base_has_is_returned(published: Published) -> None:
    other = PolicyCatalog(LEARNER.public_key, 5_000)
    body = PolicyManifest(1, 1, WEIGHTS, digest_of(9), bytes(32), bytes(32), 0)
    other.admit(open_envelope(seal(LEARNER, body, run=bytes(32), now=1e9), now=None))
    other.admit(published.manifests[3])
    twin = Patch(1, digest_of(1), patch_of(2))
    two = PolicyManifest(4, 4, WEIGHTS, digest_of(4), published.manifests[3].digest, bytes(32), 0, (twin,))
    opened = open_envelope(seal(LEARNER, two, run=bytes(32), now=1e9), now=None)
    other.admit(opened)
    edge = PatchEdge(4, 1, patch_of(2).size_bytes, opened.digest)
    assert patch_blobs((edge,), other) == edge


def test_a_local_base_has_the_weights_that_the_first_patch_starts_from(published: Published) -> None:
    for digest, found in ((digest_of(0), (patch_of(1), patch_of(2), patch_of(3))), (digest_of(1), published.route[0])):
        assert patch_blobs(published.route, published.catalog, base_digest=digest) == found
