"""The shelf gives back exactly what was published, for as long as the window lasts."""

from __future__ import annotations

import pytest

from p2prl.errors import MachineError
from p2prl.models.layout import weights_digest
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
        assert weights_digest(world.shelf.weights(policy.manifest.version)) == policy.manifest.state


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
