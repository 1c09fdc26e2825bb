"""What signatures say of an owner's words, and what a way from them spares."""

from __future__ import annotations

import pytest
from blake3 import blake3

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, open_envelope, seal
from p2prl.protocol.manifests import NO_BASE, Patch, PolicyManifest, blob_of
from p2prl.protocol.policy_head import PatchEdge, PolicyHead
from p2prl.sim.protocol_swarm import identity_of
from p2prl.swarm.policies.catalog import PolicyCatalog
from p2prl.swarm.policies.local_base import LocalBase
from p2prl.swarm.policies.route_planner import RoutePlan, RoutePlanner

LEARNER = identity_of("learner")
WHOLE = 10_000


def state_of(version: int) -> Digest:
    return Digest(blake3(b"words of version %d" % version).digest())


def manifest_of(version: int, bases: dict[int, int]) -> PolicyManifest:
    """A version with patches of so many bytes from each base."""
    patches = tuple(
        Patch(base, b"" if base == NO_BASE else state_of(base), blob_of(bytes(size), 4096))
        for base, size in bases.items()
    )
    weights = blob_of(version.to_bytes(2, "little") * (WHOLE // 2), 4096)
    previous = bytes(32) if version else b""
    return PolicyManifest(version, version, weights, state_of(version), previous, bytes(32), 0, patches)


def book_of(*manifests: PolicyManifest) -> PolicyCatalog:
    book = PolicyCatalog(LEARNER.public_key)
    for manifest in manifests:
        book.admit(open_envelope(seal(LEARNER, manifest, run=bytes(32), now=1.0), now=None))
    return book


def own_words(state: Digest | None) -> LocalBase:
    own = LocalBase(awaited=True)
    own.take(state)
    return own


@pytest.mark.parametrize(
    ("state", "fits", "versions"),
    [
        (state_of(0), True, {0}),
        (state_of(5), True, {5}),
        (state_of(20), True, {20}),
        (state_of(99), False, set()),
    ],
)
def test_a_signed_digest_says_which_version_words_are(state: Digest, fits: bool, versions: set[int]) -> None:
    book = book_of(manifest_of(20, {0: 300, 5: 100}))
    own = own_words(state)
    assert own.fits(book) is fits
    assert own.versions(book) == versions


def test_until_somebody_has_signed_the_first_version_words_may_be_that() -> None:
    own = own_words(state_of(99))
    for book in (book_of(), book_of(manifest_of(20, {19: 100, NO_BASE: 900}))):
        assert own.fits(book) is None
        assert own.versions(book) == {0}
    assert own_words(None).versions(book_of()) == set()


def test_a_plan_tells_what_the_base_spares_against_the_next_best_way() -> None:
    book = book_of(manifest_of(20, {0: 300, 19: 100, NO_BASE: 5_000}))
    goal = book.known()[0].manifest
    with_base = RoutePlanner(book, own_words(state_of(0)), rebuilds=True).plan(goal, ())
    assert (with_base.from_own, with_base.spared_bytes) == (True, 4_700)
    assert with_base.route is not None
    assert [(way.base, way.size_bytes) for way in with_base.route] == [(0, 300)]
    held = RoutePlanner(book, own_words(state_of(0)), rebuilds=True).plan(goal, (19,))
    assert (held.from_own, held.spared_bytes) == (False, 0), "what is here already leads on for less"
    assert RoutePlanner(book, own_words(state_of(0)), rebuilds=False).plan(goal, ()) == RoutePlan(route=None)


def test_a_base_that_is_the_goal_needs_no_patch() -> None:
    book = book_of(manifest_of(20, {NO_BASE: 5_000}))
    goal = book.known()[0].manifest
    plan = RoutePlanner(book, own_words(goal_state := Digest(goal.weights_digest)), rebuilds=True).plan(goal, ())
    assert goal_state == state_of(20)
    assert plan == RoutePlan(route=(), from_own=True, spared_bytes=5_000)


def test_a_way_that_a_head_lists_from_the_first_version_is_tried_until_its_manifest_comes() -> None:
    bridge = manifest_of(16, {0: 200})
    newest = manifest_of(17, {16: 100})
    raw = seal(LEARNER, bridge, run=bytes(32), now=1.0)
    previous = envelope_digest(raw)
    newest = PolicyManifest(17, 17, newest.weights, newest.weights_digest, previous, bytes(32), 0, newest.patches)
    book = book_of(newest)
    name = book.known()[0].digest
    edges = (PatchEdge(17, 16, 100, name), PatchEdge(16, 0, 200, previous))
    head = PolicyHead(17, name, 0, WHOLE, edges, 2_000, 900_000)
    book.admit_head(open_envelope(seal(LEARNER, head, run=bytes(32), now=2.0), now=None), 2.0)
    own = own_words(state_of(99))
    planner = RoutePlanner(book, own, rebuilds=True)
    assert planner.plan(newest, ()).spared_bytes == WHOLE - 300
    book.admit(open_envelope(raw, now=None))
    assert own.fits(book) is False
    assert planner.plan(newest, ()) == RoutePlan(route=None)
