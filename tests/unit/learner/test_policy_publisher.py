"""Policy publisher: patches lead to the published weights, heads list them, and useless patches are left out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from p2prl.learner.published_policies import PublishedPolicies
from p2prl.learner.publishing.patch_choice import PatchBase
from p2prl.learner.publishing.version_files import VersionJob, write_version
from p2prl.models.weights.layout import flatten
from p2prl.patches.words import BF16
from p2prl.protocol import work_slots
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import NO_BASE, PolicyManifest
from p2prl.swarm.policies.routing import cheapest_route
from tests.unit.learner.publishing_rig import Publishing, run_in
from tests.unit.rebuilding import rebuilt


@pytest.fixture
def publishing(tmp_path: Path) -> Iterator[Publishing]:
    small_run = run_in(tmp_path)
    yield Publishing(small_run)
    small_run.close()


def test_versions_of_a_period_share_a_beacon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a restart in the middle of one."""
    monkeypatch.setattr(work_slots, "VERSIONS_PER_BEACON", 3)
    small_run, numbers = run_in(tmp_path), itertools.count(1)
    made = Publishing(small_run)
    for versions in (2, 5):
        made.start(small_run.storage)
        made.publisher._random_bytes = lambda count: bytes([next(numbers)]) * count
        made.publish(versions)
    assert [manifest.beacon[0] for manifest in made.port.manifests()] == [1, 1, 1, 2, 2, 2, 3]
    small_run.close()


def test_patch_spans(publishing: Publishing) -> None:
    publishing.publish(33)
    manifests = publishing.port.manifests()
    listed = {m.version: sorted(patch.base for patch in m.patches) for m in manifests}
    assert listed[0] == [NO_BASE]
    assert listed[1] == [0]
    assert listed[4] == [0, 3]
    assert listed[8] == [4, 7]
    assert listed[16] == [NO_BASE, 0, 12, 15]
    assert listed[32] == [NO_BASE, 0, 16, 28, 31]
    for manifest in manifests:
        manifest.check(weight_bytes=manifests[0].weights.size_bytes)
        for patch in manifest.patches:
            assert patch.base == NO_BASE or patch.base_digest == manifests[patch.base].weights_digest


def test_every_patch_leads_to_the_published_weights(publishing: Publishing, tmp_path: Path) -> None:
    publishing.publish(18)
    blobs = publishing.small_run.blobs
    manifests = publishing.port.manifests()
    for manifest in (manifests[1], manifests[16], manifests[17]):
        for patch in manifest.patches:
            base = None if patch.base == NO_BASE else publishing.weights(manifests[patch.base])
            stream = blobs.path(patch.blob.root).read_bytes()
            assert rebuilt(tmp_path / "disk", manifest, base, stream) == publishing.weights(manifest)


def test_head_lists_patches_and_is_renewed_before_it_expires(publishing: Publishing) -> None:
    publishing.publish(18)
    head = publishing.port.heads()[-1]
    manifests = publishing.port.manifests()
    assert head.version == 17
    assert head.oldest == 0
    assert head.target_ms == manifests[-1].created_ms + 30_000, "the next version is due in as long as the last took"
    assert len(head.edges) == sum(len(m.patches) for m in manifests)
    route = cheapest_route(head.edges, held={1}, target=17, full_bytes=head.weight_bytes)
    assert route is not None
    heads = len(publishing.port.heads())
    publishing.publisher.heads.renew()
    assert len(publishing.port.heads()) == heads
    publishing.clock.time += 200.0
    publishing.publisher.heads.renew()
    publishing.publisher.heads.renew()
    again = publishing.port.heads()
    assert len(again) == heads + 1
    assert again[-1].version == 17
    assert again[-1].expires_ms > again[-2].expires_ms > publishing.clock.time * 1000


def test_patch_as_large_as_the_weights_is_not_published(publishing: Publishing, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 1 << 16, 20_000, dtype=np.uint16)
    other = np.random.default_rng(2).integers(0, 1 << 16, 20_000, dtype=np.uint16)
    (tmp_path / "old").write_bytes(other.tobytes())
    bases = [PatchBase(0, bytes(32), tmp_path / "old"), PatchBase(NO_BASE, b"", None)]
    blobs = publishing.small_run.blobs
    job = VersionJob(
        version=1,
        word_type=BF16,
        bases=bases,
        blobs=blobs,
        chain=publishing.small_run.published.chain,
        chunk_pieces=4,
        band_ulp=0,
        on_progress=lambda _: None,
    )
    assert write_version(job, memoryview(bytearray(noise.tobytes()))).patches == ()
    assert not list(blobs.directory.glob("*.made")), "the patches are deleted"


def test_version_sent_again_after_a_crash_is_the_same(publishing: Publishing) -> None:
    publishing.publish(3)
    assert publishing.publisher.resend(step=1)
    assert not publishing.publisher.resend(step=3)
    assert publishing.port.manifests()[-1] == publishing.port.manifests()[1]
    assert body_of(open_envelope(publishing.small_run.published.all()[0].raw, now=None), PolicyManifest).version == 2


def ordinals(weights: bytes) -> Any:
    """Ordinals of bf16 words, −0 below +0."""
    words = np.frombuffer(weights, dtype="<u2").astype(np.int64)
    return np.where(words < 0x8000, words, 0x7FFF - words)


@pytest.mark.parametrize("band", [1, 6])
def test_weights_within_the_dead_band_stay_as_published(tmp_path: Path, band: int) -> None:
    small_run = run_in(tmp_path)
    publishing = Publishing(small_run, dead_band_ulp=band)
    publishing.publish(5)
    own = {name: tensor.clone() for name, tensor in publishing.model.state_dict().items()}
    publishing.training.append(bytes(flatten(publishing.model, publishing.layout)))
    publishing.publisher.begin(publishing.publisher.copy(publishing.engine), step=5)
    publishing.publisher.finish()
    assert all(torch.equal(tensor, own[name]) for name, tensor in publishing.model.state_dict().items())
    published = publishing.published()
    assert published[0] == publishing.training[0], "the first version is published without dead band"
    held = ordinals(published[0])
    for version in range(1, 6):
        now = ordinals(publishing.training[version])
        held = np.where(np.abs(now - held) > band, now, held)
        assert np.array_equal(ordinals(published[version]), held)
        assert np.count_nonzero(held != now) > 0, "otherwise nothing was tested"
        patch = next(p for p in publishing.port.manifests()[version].patches if p.base == version - 1)
        stream = small_run.blobs.path(patch.blob.root).read_bytes()
        manifest = publishing.port.manifests()[version]
        assert rebuilt(tmp_path / "disk", manifest, published[version - 1], stream) == published[version]
    small_run.close()


def test_restart_continues_from_the_published_weights(tmp_path: Path) -> None:
    straight = Publishing(run_in(tmp_path / "straight"), dead_band_ulp=3)
    straight.publish(6)
    killed = Publishing(run_in(tmp_path / "killed"), dead_band_ulp=3)
    for _ in range(6):
        killed.publish(1)
        storage = killed.small_run.storage
        storage.published = PublishedPolicies(storage.blobs)
        storage.restore_published(0)
        killed.start(storage)
    assert killed.published() == straight.published()
    for publishing in (straight, killed):
        publishing.small_run.close()


def test_dead_band_makes_patches_smaller(tmp_path: Path) -> None:
    shares, sizes = [], []
    for band in (0, 2, 8):
        publishing = Publishing(run_in(tmp_path / str(band)), dead_band_ulp=band)
        publishing.publish(1)
        assert publishing.publisher.figures == {}, "the first version has none before it"
        publishing.publish(5)
        before, after = (np.frombuffer(weights, dtype="<u2") for weights in publishing.published()[-2:])
        figures = publishing.publisher.figures
        assert figures["published/changed_share"] == np.count_nonzero(before != after) / len(after)
        (short,) = (patch.blob for patch in publishing.port.manifests()[-1].patches if patch.base == 4)
        assert figures["published/patch_bytes"] == short.size_bytes
        shares.append(figures["published/changed_share"])
        sizes.append(figures["published/patch_bytes"])
        publishing.small_run.close()
    assert shares[0] > 1.5 * shares[1] > 2 * shares[2] > 0
    assert sizes == sorted(sizes, reverse=True)


def test_version_without_a_patch_costs_its_weights(tmp_path: Path) -> None:
    publishing = Publishing(run_in(tmp_path))
    publishing.publish(1)
    with torch.no_grad():
        for parameter in publishing.model.parameters():
            words = torch.randint(-0x7F80, 0x7F80, parameter.shape, generator=publishing.generator, dtype=torch.int16)
            parameter.copy_(torch.where(words < 0, -0x8000 - words - 1, words).to(torch.int16).view(torch.bfloat16))
    publishing.publish(1)
    assert publishing.port.manifests()[-1].patches == ()
    assert publishing.publisher.figures["published/patch_bytes"] == publishing.layout.size_bytes
    assert publishing.publisher.figures["published/changed_share"] > 0.99
    publishing.small_run.close()


def test_lost_weights_are_published_without_dead_band(tmp_path: Path) -> None:
    publishing = Publishing(run_in(tmp_path), dead_band_ulp=6)
    publishing.publish(2)
    publishing.lose_weights()
    publishing.publish(1)
    assert publishing.weights(publishing.port.manifests()[-1]) == publishing.training[-1]
    assert publishing.publisher.figures == {}
    publishing.small_run.close()
