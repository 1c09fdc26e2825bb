"""Catalog of policy versions: order, equivocation, forgetting."""

from __future__ import annotations

import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, envelope_digest, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.swarm.policies.catalog import EquivocationError, PolicyCatalog

LEARNER, OTHER = Identity(b"l" * 16), Identity(b"o" * 16)
RUN = bytes(range(32))


def manifest(version: int, previous: bytes, *, identity: Identity = LEARNER, beacon: int = 0) -> Opened:
    ref = blob_of(bytes((version % 256,)) * 5000, 4096)
    body = PolicyManifest(version, version, ref, bytes(32), previous, bytes((beacon,)) * 32, 0)
    return open_envelope(seal(identity, body, run=RUN, now=1e9 + version), now=None)


def versions(count: int) -> list[Opened]:
    chain: list[Opened] = []
    for version in range(count):
        chain.append(manifest(version, chain[-1].digest if chain else b""))
    return chain


@pytest.fixture
def catalog() -> PolicyCatalog:
    return PolicyCatalog(LEARNER.public_key, 5000)


def test_newest_is_the_highest_version(catalog: PolicyCatalog) -> None:
    chain = versions(4)
    newest = []
    for index in (1, 3, 0, 2):
        catalog.admit(chain[index])
        assert catalog.newest is not None
        newest.append(catalog.newest.manifest.version)
    assert newest == [1, 3, 3, 3]
    known = catalog.named(chain[2].digest)
    assert known is not None
    assert known.raw == chain[2].raw
    assert catalog.get(9) is None
    assert catalog.named(Digest(bytes(32))) is None


def test_admitting_twice_changes_nothing(catalog: PolicyCatalog) -> None:
    (first,) = versions(1)
    assert catalog.admit(first) == catalog.admit(first)


def test_two_manifests_of_one_version_are_equivocation(catalog: PolicyCatalog) -> None:
    first, twin = manifest(0, b""), manifest(0, b"", beacon=1)
    catalog.admit(first)
    with pytest.raises(EquivocationError) as caught:
        catalog.admit(twin)
    assert {caught.value.first, caught.value.second} == {first.raw, twin.raw}
    assert catalog.newest is not None
    assert catalog.newest.digest == first.digest


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_broken_chain_is_equivocation_in_either_order(catalog: PolicyCatalog, order: tuple[int, int]) -> None:
    pair = (manifest(0, b""), manifest(1, bytes(32)))
    catalog.admit(pair[order[0]])
    with pytest.raises(EquivocationError):
        catalog.admit(pair[order[1]])


def test_only_the_learner_signs_policies(catalog: PolicyCatalog) -> None:
    with pytest.raises(RemoteProtocolError):
        catalog.admit(manifest(0, b"", identity=OTHER))
    assert catalog.newest is None


def test_malformed_manifests_are_refused(catalog: PolicyCatalog) -> None:
    with pytest.raises(RemoteProtocolError):
        catalog.admit(manifest(1, b""))
    with pytest.raises(RemoteProtocolError):
        catalog.admit(manifest(0, envelope_digest(b"")))


def test_forgotten_versions_are_returned(catalog: PolicyCatalog) -> None:
    chain = versions(5)
    for opened in chain:
        catalog.admit(opened)
    old = catalog.forget_before(3)
    assert [known.manifest.version for known in old] == [0, 1, 2]
    assert catalog.get(2) is None
    assert catalog.uses(catalog.admit(chain[4]).manifest.weights.root)
    assert not catalog.uses(old[0].manifest.weights.root)
