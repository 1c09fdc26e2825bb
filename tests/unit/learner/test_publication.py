"""What a learner publishes: patches that lead to its words, the ways it lists, and nothing that saves no bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from p2prl.clock import Clock
from p2prl.learner.patch_making import Base, make_patches
from p2prl.learner.policy_publisher import PolicyPublisher
from p2prl.learner.published_policies import PublishedPolicies
from p2prl.learner.signing_sender import SigningSender
from p2prl.models.tiny_models import tiny_model
from p2prl.models.weight_layout import flatten, layout_of
from p2prl.net.process import control
from p2prl.net.storage.patch_decoder import rebuild
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import NO_BASE, PolicyManifest
from p2prl.protocol.policy_head import PolicyHead
from p2prl.swarm.policies.routing import cheapest_route
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

    def __init__(self, world: World, *, dead_band_ulp: int = 0, dtype: str = "bfloat16") -> None:
        self.world, self.ear, self.clock = world, Ear(), HandClock()
        self.model = tiny_model(seed=3).model
        self.layout = layout_of(self.model, dtype)
        self.dead_band_ulp = dead_band_ulp
        self.training: list[bytes] = []
        self.generator = torch.Generator().manual_seed(7)
        self.start(world.shelf)

    def start(self, shelf: PublishedPolicies) -> None:
        """The publication of a learner that has just started, with what it finds on its shelf."""
        voice = SigningSender(self.world.learner, self.world.run, self.world.journal, self.clock)
        voice.attach(self.ear)
        self.publication = PolicyPublisher(
            journal=self.world.journal,
            blobs=self.world.blobs,
            shelf=shelf,
            layout=self.layout,
            voice=voice,
            staleness_bound=64,
            chunk_pieces=4,
            dead_band_ulp=self.dead_band_ulp,
            clock=self.clock,
            random_bytes=bytes,
        )

    def publish(self, versions: int) -> None:
        for _ in range(versions):
            step = len(self.ear.manifests())
            self.training.append(bytes(flatten(self.model, self.layout)))
            self.publication.publish(self.model, step=step)
            self.clock.time += 30.0
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter += 1e-4 * torch.randn(parameter.shape, generator=self.generator)

    def published(self) -> list[bytes]:
        """The weights of every version said so far."""
        return [self.world.blobs.path(m.weights.root).read_bytes() for m in self.ear.manifests()]


@pytest.fixture
def press(tmp_path: Path) -> Iterator[Press]:
    world = World(tmp_path)
    yield Press(world)
    world.close()


def test_spans_are_one_four_sixteen_and_the_start(press: Press) -> None:
    press.publish(33)
    manifests = press.ear.manifests()
    listed = {m.version: sorted(patch.base for patch in m.patches) for m in manifests}
    assert listed[0] == [NO_BASE]
    assert listed[1] == [0]
    assert listed[4] == [0, 3]
    assert listed[8] == [4, 7]
    assert listed[16] == [NO_BASE, 0, 12, 15]
    assert listed[32] == [NO_BASE, 0, 16, 28, 31]
    for manifest in manifests:
        manifest.check(max_weight_bytes=1 << 30)
        for patch in manifest.patches:
            assert patch.base == NO_BASE or patch.base_digest == manifests[patch.base].weights_digest


def test_every_patch_leads_to_the_published_words(press: Press, tmp_path: Path) -> None:
    press.publish(18)
    blobs = press.world.blobs
    manifests = press.ear.manifests()
    for manifest in (manifests[1], manifests[16], manifests[17]):
        for patch in manifest.patches:
            base = "" if patch.base == NO_BASE else str(blobs.path(manifests[patch.base].weights.root))
            target = tmp_path / "rebuilt"
            stream = str(blobs.path(patch.blob.root))
            size = manifest.weights.size_bytes
            rebuild(control.PatchesReady(b"", manifest.weights_digest, size, "bfloat16", base, (stream,), str(target)))
            assert target.read_bytes() == blobs.path(manifest.weights.root).read_bytes()


def test_the_head_lists_the_ways_and_is_signed_again_before_it_expires(press: Press) -> None:
    press.publish(18)
    head = press.ear.heads()[-1]
    manifests = press.ear.manifests()
    assert head.version == 17
    assert head.oldest == 0
    assert head.target_ms == manifests[-1].created_ms + 30_000, "the next version is due in as long as the last took"
    assert len(head.edges) == sum(len(m.patches) for m in manifests)
    route = cheapest_route(head.edges, held={1}, target=17, full_bytes=head.weight_bytes)
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
    bases = [Base(0, bytes(32), tmp_path / "old"), Base(NO_BASE, b"", None)]
    assert make_patches(memoryview(noise.tobytes()), "bfloat16", bases, press.world.blobs, chunk_pieces=4) == ()


def test_a_version_said_again_after_a_crash_is_the_same(press: Press) -> None:
    press.publish(3)
    press.publication.publish(press.model, step=1)
    assert press.ear.manifests()[-1] == press.ear.manifests()[1]
    assert body_of(open_envelope(press.world.shelf.all()[0].raw, now=None), PolicyManifest).version == 2


def places(weights: bytes) -> Any:
    """Where words of bf16 stand on the line of all of them, −0 below +0."""
    words = np.frombuffer(weights, dtype="<u2").astype(np.int64)
    return np.where(words < 0x8000, words, 0x7FFF - words)


@pytest.mark.parametrize("band", [1, 6])
def test_words_within_the_dead_band_stay_as_they_were_published(tmp_path: Path, band: int) -> None:
    world = World(tmp_path)
    press = Press(world, dead_band_ulp=band)
    press.publish(5)
    own = {name: tensor.clone() for name, tensor in press.model.state_dict().items()}
    press.training.append(bytes(flatten(press.model, press.layout)))
    press.publication.publish(press.model, step=5)
    assert all(torch.equal(tensor, own[name]) for name, tensor in press.model.state_dict().items())
    published = press.published()
    assert published[0] == press.training[0], "the first version is published whole"
    held = places(published[0])
    for version in range(1, 6):
        now = places(press.training[version])
        held = np.where(np.abs(now - held) > band, now, held)
        assert np.array_equal(places(published[version]), held)
        assert np.count_nonzero(held != now) > 0, "otherwise nothing was tried"
        patch = next(p for p in press.ear.manifests()[version].patches if p.base == version - 1)
        target, stream = tmp_path / "rebuilt", str(world.blobs.path(patch.blob.root))
        base = str(world.blobs.path(press.ear.manifests()[version - 1].weights.root))
        state = press.ear.manifests()[version].weights_digest
        rebuild(control.PatchesReady(b"", state, len(published[version]), "bfloat16", base, (stream,), str(target)))
        assert target.read_bytes() == published[version]
    world.close()


def test_a_restart_goes_on_from_the_words_that_were_published(tmp_path: Path) -> None:
    straight = Press(World(tmp_path / "straight"), dead_band_ulp=3)
    straight.publish(6)
    killed = Press(World(tmp_path / "killed"), dead_band_ulp=3)
    for _ in range(6):
        killed.publish(1)
        shelf = PublishedPolicies(killed.world.blobs)
        for raw in killed.world.journal.policies(from_step=0):
            shelf.add(raw)
        killed.start(shelf)
    assert killed.published() == straight.published()
    for press in (straight, killed):
        press.world.close()


def test_a_dead_band_makes_patches_smaller_and_the_log_says_so(tmp_path: Path) -> None:
    shares, sizes = [], []
    for band in (0, 2, 8):
        press = Press(World(tmp_path / str(band)), dead_band_ulp=band)
        press.publish(1)
        assert press.publication.figures == {}, "the first version has none before it"
        press.publish(5)
        before, after = (np.frombuffer(weights, dtype="<u2") for weights in press.published()[-2:])
        figures = press.publication.figures
        assert figures["published/changed_share"] == np.count_nonzero(before != after) / len(after)
        (short,) = (patch.blob for patch in press.ear.manifests()[-1].patches if patch.base == 4)
        assert figures["published/patch_bytes"] == short.size_bytes
        shares.append(figures["published/changed_share"])
        sizes.append(figures["published/patch_bytes"])
        press.world.close()
    assert shares[0] > 1.5 * shares[1] > 2 * shares[2] > 0
    assert sizes == sorted(sizes, reverse=True)


def test_a_version_without_a_patch_costs_its_weights(tmp_path: Path) -> None:
    press = Press(World(tmp_path))
    press.publish(1)
    with torch.no_grad():
        for parameter in press.model.parameters():
            words = torch.randint(-0x7F80, 0x7F80, parameter.shape, generator=press.generator, dtype=torch.int16)
            parameter.copy_(torch.where(words < 0, -0x8000 - words - 1, words).to(torch.int16).view(torch.bfloat16))
    press.publish(1)
    assert press.ear.manifests()[-1].patches == ()
    assert press.publication.figures["published/patch_bytes"] == press.layout.size_bytes
    assert press.publication.figures["published/changed_share"] > 0.99
    press.world.close()


def test_published_words_that_were_lost_are_published_whole(tmp_path: Path) -> None:
    press = Press(World(tmp_path), dead_band_ulp=6)
    press.publish(2)
    press.world.blobs.path(press.ear.manifests()[-1].weights.root).unlink()
    press.publish(1)
    newest = press.ear.manifests()[-1].weights
    assert press.world.blobs.path(newest.root).read_bytes() == press.training[-1]
    assert press.publication.figures == {}
    press.world.close()
