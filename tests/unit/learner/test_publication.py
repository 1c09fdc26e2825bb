"""What a learner publishes: patches that lead to its words, the ways it lists, and nothing that saves no bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from p2prl.clock import Clock
from p2prl.learner.patching import Base, make_patches
from p2prl.learner.publication import Publication
from p2prl.learner.voice import Voice
from p2prl.models.layout import layout_of
from p2prl.models.tiny import tiny_model
from p2prl.net import control
from p2prl.net.rebuilding import rebuild
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import NOTHING, PolicyManifest
from p2prl.protocol.versions import PolicyHead
from p2prl.swarm.routes import Way, cheapest_route
from tests.unit.learner.world import NOW, World


class Ear:
    """A network that keeps what is said."""

    addresses: tuple[str, ...] = ()
    status = None

    def __init__(self) -> None:
        self.said: list[Any] = []

    def send(self, message: control.ToNetwork) -> None:
        assert isinstance(message, control.Publish)
        self.said.append(open_envelope(message.envelope, now=None).body)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        return []

    def close(self) -> None:
        pass

    def manifests(self) -> list[PolicyManifest]:
        return [body for body in self.said if isinstance(body, PolicyManifest)]

    def heads(self) -> list[PolicyHead]:
        return [body for body in self.said if isinstance(body, PolicyHead)]


class HandClock(Clock):
    time = NOW

    def now(self) -> float:
        return self.time


class Press:
    """A learner's publication, and a model that moves a little between versions."""

    def __init__(self, world: World) -> None:
        self.world, self.ear, self.clock = world, Ear(), HandClock()
        voice = Voice(world.learner, world.run, world.journal, self.clock)
        voice.attach(self.ear)
        self.model = tiny_model(seed=3).model
        self.layout = layout_of(self.model, "bfloat16")
        self.publication = Publication(
            journal=world.journal,
            blobs=world.blobs,
            shelf=world.shelf,
            layout=self.layout,
            voice=voice,
            staleness_bound=64,
            chunk_pieces=4,
            clock=self.clock,
            random_bytes=bytes,
        )

    def publish(self, versions: int) -> None:
        torch.manual_seed(7)
        for _ in range(versions):
            step = len(self.ear.manifests())
            self.publication.publish(self.model, step=step)
            self.clock.time += 30.0
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter += 1e-4 * torch.randn_like(parameter)


@pytest.fixture
def press(tmp_path: Path) -> Iterator[Press]:
    world = World(tmp_path)
    yield Press(world)
    world.close()


def test_spans_are_one_four_sixteen_and_the_start(press: Press) -> None:
    press.publish(33)
    manifests = press.ear.manifests()
    listed = {m.version: sorted(patch.base for patch in m.patches) for m in manifests}
    assert listed[0] == [NOTHING]
    assert listed[1] == [0]
    assert listed[4] == [0, 3]
    assert listed[8] == [4, 7]
    assert listed[16] == [NOTHING, 0, 12, 15]
    assert listed[32] == [NOTHING, 0, 16, 28, 31]
    for manifest in manifests:
        manifest.check(max_weight_bytes=1 << 30)
        for patch in manifest.patches:
            assert patch.base == NOTHING or patch.base_state == manifests[patch.base].state


def test_every_patch_leads_to_the_published_words(press: Press, tmp_path: Path) -> None:
    press.publish(18)
    blobs = press.world.blobs
    manifests = press.ear.manifests()
    for manifest in (manifests[1], manifests[16], manifests[17]):
        for patch in manifest.patches:
            base = "" if patch.base == NOTHING else str(blobs.path(manifests[patch.base].weights.root))
            target = tmp_path / "rebuilt"
            stream = str(blobs.path(patch.blob.root))
            size = manifest.weights.size_bytes
            rebuild(control.Patched(b"", manifest.state, size, "bfloat16", base, (stream,), str(target)))
            assert target.read_bytes() == blobs.path(manifest.weights.root).read_bytes()


def test_the_head_lists_the_ways_and_is_signed_again_before_it_expires(press: Press) -> None:
    press.publish(18)
    head = press.ear.heads()[-1]
    manifests = press.ear.manifests()
    assert head.version == 17
    assert head.oldest == 0
    assert head.target_ms == manifests[-1].created_ms + 30_000, "the next version is due in as long as the last took"
    ways = [Way(edge.version, edge.base, edge.size_bytes, edge.manifest) for edge in head.edges]  # type: ignore[arg-type]
    assert len(ways) == sum(len(m.patches) for m in manifests)
    route = cheapest_route(ways, held={1}, target=17, whole_bytes=head.weight_bytes)
    assert route is not None
    said = len(press.ear.heads())
    press.publication.refresh()
    assert len(press.ear.heads()) == said
    press.clock.time += 200.0
    press.publication.refresh()
    press.publication.refresh()
    again = press.ear.heads()
    assert len(again) == said + 1
    assert again[-1].version == 17
    assert again[-1].expires_ms > again[-2].expires_ms > press.clock.time * 1000


def test_nothing_is_published_that_saves_no_bytes(press: Press, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 1 << 16, 20_000, dtype=np.uint16)
    other = np.random.default_rng(2).integers(0, 1 << 16, 20_000, dtype=np.uint16)
    (tmp_path / "old").write_bytes(other.tobytes())
    bases = [Base(0, bytes(32), tmp_path / "old"), Base(NOTHING, b"", None)]
    assert make_patches(memoryview(noise.tobytes()), "bfloat16", bases, press.world.blobs, chunk_pieces=4) == ()


def test_a_version_said_again_after_a_crash_is_the_same(press: Press) -> None:
    press.publish(3)
    press.publication.publish(press.model, step=1)
    assert press.ear.manifests()[-1] == press.ear.manifests()[1]
    assert body_of(open_envelope(press.world.shelf.all()[0].raw, now=None), PolicyManifest).version == 2
