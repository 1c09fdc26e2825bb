"""The shelf gives back exactly what was published, for as long as the window lasts."""

from __future__ import annotations

import pytest

from p2prl.errors import MachineError
from p2prl.learner.patch_making import bases_of
from p2prl.learner.published_policies import PublishedPolicies
from p2prl.models.weight_layout import weights_digest
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import NO_BASE, PolicyManifest
from tests.unit.learner.world import World


def test_a_policy_is_found_by_version_and_name_together(world: World) -> None:
    first, second = world.publish(0, step=0), world.publish(1, step=2)
    assert world.shelf.newest == second
    assert world.shelf.get(0, first.digest) == first
    assert world.shelf.get(0, second.digest) is None
    assert world.shelf.get(2, second.digest) is None


def test_weights_are_the_published_bytes_beyond_the_cache(world: World) -> None:
    published = [world.publish(version, step=version) for version in range(7)]
    for policy in (*published, *published):
        assert weights_digest(world.shelf.weights(policy.manifest.version)) == policy.manifest.weights_digest


def test_what_leaves_the_window_is_forgotten_but_never_the_newest(world: World) -> None:
    for version in range(4):
        world.publish(version, step=10 * version)
    world.shelf.drop_before_step(20)
    assert len(world.shelf) == 2
    world.shelf.drop_before_step(1_000)
    newest = world.shelf.newest
    assert newest is not None
    assert newest.manifest.version == 3
    assert len(world.shelf) == 1


def test_deleted_weights_are_one_sentence_with_a_remedy(world: World) -> None:
    policy = world.publish(0, step=0)
    world.blobs.path(policy.manifest.weights.root).unlink()
    with pytest.raises(MachineError, match="weights of version 0 are missing") as caught:
        world.shelf.weights(0)
    assert "blobs" in caught.value.remedy


def test_the_first_versions_words_stay_for_newcomers_when_it_has_left_the_window(world: World) -> None:
    first = world.publish(0, step=0)
    for version in range(1, 16):
        world.publish(version, step=version)
    words = world.shelf.weights(0)
    world.shelf.drop_before_step(12)
    for version in range(12):  # as the network process does with versions nobody should be waiting for
        world.blobs.drop(blob_root(world, version))
    assert len(world.shelf) == 4
    assert world.shelf.at(0) is None
    bases = {base.version: base for base in bases_of(16, world.shelf)}
    assert set(bases) == {NO_BASE, 0, 12, 15}
    path = bases[0].path
    assert path is not None
    assert path.read_bytes() == words
    assert bases[0].state == first.manifest.weights_digest

    again = PublishedPolicies(world.blobs)
    again.recall_first(first.raw)
    assert again.words_of(0) == (first.manifest.weights_digest, path)
    assert len(again) == 0


def blob_root(world: World, version: int) -> Digest:
    raw = world.journal.policy_at(version)
    assert raw is not None
    return body_of(open_envelope(raw, now=None), PolicyManifest).weights.root


def test_words_that_were_deleted_are_no_base(world: World) -> None:
    first = world.publish(0, step=0)
    world.publish(1, step=1)
    world.blobs.path(first.manifest.weights_digest).unlink()
    world.blobs.path(blob_root(world, 1)).unlink()
    assert [base.version for base in bases_of(16, world.shelf)] == [NO_BASE]


@pytest.mark.parametrize("kept", [1, 2, 6, 20])
def test_a_patch_from_the_first_version_is_always_in_the_window(world: World, kept: int) -> None:
    made = 0
    for version in range(40):
        bases = [base.version for base in bases_of(version, world.shelf)]
        made += 0 in bases
        world.publish(version, step=version, bases=bases)
        world.shelf.drop_before_step(version - kept + 1)
        listed = {patch.base for published in world.shelf.all() for patch in published.manifest.patches}
        assert version == 0 or 0 in listed, version
    assert made <= 40 / max(1, min(16, kept / 2)) + 6, "and no more often than that takes"


def test_words_cut_short_are_no_base(world: World) -> None:
    first = world.publish(0, step=0)
    path = world.blobs.path(Digest(first.manifest.weights_digest))
    path.write_bytes(path.read_bytes()[:-1])
    assert world.shelf.words_of(0) is None
