"""Local base: the versions that signatures identify it as, and the bytes it saves."""

from __future__ import annotations

import pytest
from blake3 import blake3

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, open_envelope, seal
from p2prl.protocol.manifests import NO_BASE, Patch, PolicyManifest, blob_of
from p2prl.protocol.policy_head import PatchEdge, PolicyHead
from p2prl.sim.machines import identity_of
from p2prl.swarm.policies.catalog import PolicyCatalog
from p2prl.swarm.policies.routing import LocalBase, RoutePlan, RoutePlanner

LEARNER = identity_of("learner")
FULL = 10_000


def digest_of(version: int) -> Digest:
    return Digest(blake3(b"weights of version %d" % version).digest())


def manifest_of(version: int, bases: dict[int, int]) -> PolicyManifest:
    """A version with patches of these sizes from each base."""
    patches = tuple(
        Patch(base, b"" if base == NO_BASE else digest_of(base), blob_of(bytes(size), 4096))
        for base, size in bases.items()
    )
    weights = blob_of(version.to_bytes(2, "little") * (FULL // 2), 4096)
    previous = bytes(32) if version else b""
    return PolicyManifest(version, version, weights, digest_of(version), previous, bytes(32), 0, patches)


def catalog_of(*manifests: PolicyManifest) -> PolicyCatalog:
    catalog = PolicyCatalog(LEARNER.public_key, FULL)
    for manifest in manifests:
        catalog.admit(open_envelope(seal(LEARNER, manifest, run=bytes(32), now=1.0), now=None))
    return catalog


def local_base(digest: Digest | None) -> LocalBase:
    base = LocalBase(awaited=True)
    base.replace(digest)
    return base


@pytest.mark.parametrize(
    ("digest", "matches", "versions"),
    [
        (digest_of(0), True, {0}),
        (digest_of(5), True, {5}),
        (digest_of(20), True, {20}),
        (digest_of(99), False, set()),
    ],
)
def test_signed_digests_identify_the_base(digest: Digest, matches: bool, versions: set[int]) -> None:
    catalog = catalog_of(manifest_of(20, {0: 300, 5: 100}))
    base = local_base(digest)
    assert base.matches_run(catalog) is matches
    assert base.versions(catalog) == versions


def test_an_unknown_base_may_be_version_0() -> None:
    base = local_base(digest_of(99))
    for catalog in (catalog_of(), catalog_of(manifest_of(20, {19: 100, NO_BASE: 900}))):
        assert base.matches_run(catalog) is None
        assert base.versions(catalog) == {0}
    assert local_base(None).versions(catalog_of()) == set()


def test_saved_bytes_against_the_next_best_route() -> None:
    catalog = catalog_of(manifest_of(20, {0: 300, 19: 100, NO_BASE: 5_000}))
    target = catalog.newest_first()[0].manifest
    with_base = RoutePlanner(catalog, local_base(digest_of(0)), rebuilds=True).plan(target, ())
    assert (with_base.from_local_base, with_base.saved_bytes) == (True, 4_700)
    assert with_base.route is not None
    assert [(patch.base, patch.size_bytes) for patch in with_base.route] == [(0, 300)]
    held = RoutePlanner(catalog, local_base(digest_of(0)), rebuilds=True).plan(target, (19,))
    assert (held.from_local_base, held.saved_bytes) == (False, 0), "a version on disk leads on for less"
    assert RoutePlanner(catalog, local_base(digest_of(0)), rebuilds=False).plan(target, ()) == RoutePlan(route=None)


def test_a_base_equal_to_the_target_needs_no_patch() -> None:
    catalog = catalog_of(manifest_of(20, {NO_BASE: 5_000}))
    target = catalog.newest_first()[0].manifest
    plan = RoutePlanner(catalog, local_base(target_digest := Digest(target.weights_digest)), rebuilds=True).plan(
        target, ()
    )
    assert target_digest == digest_of(20)
    assert plan == RoutePlan(route=(), from_local_base=True, saved_bytes=5_000)


def test_a_patch_from_version_0_is_planned_until_contradicted() -> None:
    bridge = manifest_of(16, {0: 200})
    newest = manifest_of(17, {16: 100})
    raw = seal(LEARNER, bridge, run=bytes(32), now=1.0)
    previous = envelope_digest(raw)
    newest = PolicyManifest(17, 17, newest.weights, newest.weights_digest, previous, bytes(32), 0, newest.patches)
    catalog = catalog_of(newest)
    name = catalog.newest_first()[0].digest
    edges = (PatchEdge(17, 16, 100, name), PatchEdge(16, 0, 200, previous))
    head = PolicyHead(17, name, 0, FULL, edges, 2_000, 900_000)
    catalog.admit_head(open_envelope(seal(LEARNER, head, run=bytes(32), now=2.0), now=None), 2.0)
    base = local_base(digest_of(99))
    planner = RoutePlanner(catalog, base, rebuilds=True)
    assert planner.plan(newest, ()).saved_bytes == FULL - 300
    catalog.admit(open_envelope(raw, now=None))
    assert base.matches_run(catalog) is False
    assert planner.plan(newest, ()) == RoutePlan(route=None)
