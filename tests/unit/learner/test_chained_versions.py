"""Versions in the weight chain: damage, older folders, crashes before the signature, and what is announced when."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from p2prl.errors import IntegrityError, MachineError
from p2prl.learner.published_policies import PublishedPolicies, versions_kept
from p2prl.learner.publishing.patch_choice import patch_bases
from p2prl.learner.publishing.version_files import VersionJob, write_version
from p2prl.learner.timing.stages import InlineStage, Job
from p2prl.models.weights.layout import flatten
from p2prl.net.storage.chain_blobs import ChainBlobs
from p2prl.patches.words import BF16
from p2prl.protocol.digests import chunk_digest
from p2prl.protocol.manifests import NO_BASE, BlobRef
from tests.unit.learner.publishing_rig import Publishing, run_in
from tests.unit.learner.small_run import SmallRun
from tests.unit.rebuilding import rebuilt


def started_again(publishing: Publishing) -> list[int]:
    """A learner that starts with the files on disk; versions of the window that it lacks."""
    small_run = publishing.small_run
    small_run.storage.published = small_run.published = PublishedPolicies(small_run.blobs)
    lost = small_run.storage.restore_published(0)
    publishing.start(small_run.storage)
    return lost


def test_nothing_is_published_over_damaged_weights(tmp_path: Path) -> None:
    """The learner stops, with all its files; started again it goes on without the versions that are lost."""
    publishing = Publishing(run_in(tmp_path))
    publishing.publish(3)
    chain = publishing.small_run.published.chain
    file = chain.directory / "weights"
    data = bytearray(file.read_bytes())
    data[5000] ^= 1
    file.write_bytes(data)
    before = chain.state
    with pytest.raises(MachineError, match=r"version 3 cannot be written.*segment 0"):
        publishing.publish(1)
    publishing.training.pop()
    assert chain.state == before
    assert started_again(publishing) == [0, 1, 2]
    publishing.publish(2)
    manifests = publishing.port.manifests()
    assert [publishing.weights(manifest) for manifest in manifests[3:]] == publishing.training[3:]
    assert [patch.base for patch in manifests[3].patches] == []
    assert [patch.base for patch in manifests[4].patches] == [3], "nothing leads back beyond the damage"
    assert not publishing.small_run.published.can_replay(2)
    assert publishing.small_run.published.can_replay(3)
    publishing.small_run.close()


def test_a_deleted_patch_costs_the_versions_behind_it(tmp_path: Path) -> None:
    publishing = Publishing(run_in(tmp_path))
    publishing.publish(4)
    (publishing.small_run.published.chain.directory / "back-00000002-00000001").unlink()
    assert started_again(publishing) == [0, 1]
    assert publishing.small_run.published.weights(2).open() == publishing.training[2]
    publishing.publish(2)
    assert [patch.base for patch in publishing.port.manifests()[4].patches] == [3]
    with pytest.raises(MachineError, match="weights of version 1 are missing"):
        publishing.small_run.published.weights(1).open()
    publishing.small_run.close()


def test_a_folder_with_a_file_for_every_version_goes_on(tmp_path: Path) -> None:
    """What an earlier program left: whole versions, no chain."""
    publishing = Publishing(run_in(tmp_path))
    publishing.publish(5)
    small_run, manifests = publishing.small_run, publishing.port.manifests()
    for manifest in manifests:
        small_run.blobs.add(manifest.weights, publishing.weights(manifest))
    small_run.published.chain.remove()
    storage = small_run.storage
    storage.published = PublishedPolicies(storage.blobs)
    storage.restore_published(0)
    publishing.start(storage)
    for version, weights in enumerate(publishing.training):
        assert storage.published.weights(version).open() == weights
    publishing.publish(2)
    assert [patch.base for patch in publishing.port.manifests()[5].patches] == [4]
    assert [patch.base for patch in publishing.port.manifests()[6].patches] == [5]
    for version, weights in enumerate(publishing.training):
        assert storage.published.weights(version).open() == weights
    small_run.close()


def test_a_version_that_was_written_but_not_signed_is_taken_back(tmp_path: Path) -> None:
    """A crash between the copy and the head loses that version and forks none: the next one has its number."""
    publishing = Publishing(run_in(tmp_path))
    publishing.publish(4)
    small_run = publishing.small_run
    job = VersionJob(
        version=4,
        word_type=BF16,
        bases=patch_bases(4, small_run.published),
        blobs=small_run.blobs,
        chain=small_run.published.chain,
        chunk_pieces=4,
        band_ulp=0,
        on_progress=lambda _: None,
    )
    assert write_version(job, memoryview(flatten(publishing.model, publishing.layout))).staged
    with torch.no_grad():
        for parameter in publishing.model.parameters():
            parameter += 1e-3
    storage = small_run.storage
    storage.published = small_run.published = PublishedPolicies(storage.blobs)
    storage.restore_published(0)
    publishing.start(storage)
    publishing.publish(2)
    assert publishing.published() == publishing.training
    small_run.close()


def test_weights_in_use_outlive_the_window(tmp_path: Path) -> None:
    publishing = Publishing(SmallRun(tmp_path, staleness_bound=2))
    publishing.publish(2)
    held = publishing.small_run.published.weights(1)
    publishing.publish(10)
    assert publishing.small_run.published.at(1) is None
    assert held.open() == publishing.training[1]
    state = publishing.small_run.published.chain.state
    assert state is not None
    assert 1 in state.roots
    del held
    publishing.publish(1)
    state = publishing.small_run.published.chain.state
    assert state is not None
    assert sorted(state.roots)[:2] == [0, 12 - versions_kept(publishing.small_run.manifest) - 1 - 1]
    publishing.small_run.close()


def test_version_zero_stays_in_the_chain_for_newcomers(tmp_path: Path) -> None:
    """In a short window a patch from version 0 comes with versions that 16 does not divide. At version 16 the one of
    version 13 is the only way back to 0, and no version of the window is lost."""
    publishing = Publishing(SmallRun(tmp_path / "run", staleness_bound=5))
    publishing.publish(17)
    small_run, manifests = publishing.small_run, publishing.port.manifests()
    state = small_run.published.chain.state
    assert state is not None
    oldest = 16 - versions_kept(small_run.manifest) - 1 - 1
    assert sorted(state.roots) == [0, *range(oldest, 17)]
    for policy in small_run.published.all():
        assert bytes(small_run.published.read(policy)) == publishing.training[policy.manifest.version]
    assert not small_run.blobs.path(manifests[0].weights.root).exists(), "no file of its own"
    (base,) = [base for base in patch_bases(32, small_run.published) if base.version == 0]
    assert (base.digest, base.chained) == (manifests[0].weights_digest, True)
    assert bytes(small_run.published.chain.copy_of(0)) == publishing.training[0]
    assert [patch.base for patch in manifests[16].patches] == [15, 12, 0, NO_BASE]
    patch = manifests[16].patches[2]
    stream = small_run.blobs.path(patch.blob.root).read_bytes()
    assert rebuilt(tmp_path / "disk", manifests[16], publishing.training[0], stream) == publishing.training[16]
    small_run.close()


def test_the_network_serves_every_version_of_the_window(tmp_path: Path) -> None:
    publishing = Publishing(run_in(tmp_path))
    publishing.publish(6)
    store = ChainBlobs(publishing.small_run.blobs.directory)
    for manifest, weights in zip(publishing.port.manifests(), publishing.training, strict=True):
        ref = manifest.weights
        assert set(store.begin(ref)) == set(range(ref.total))
        assert b"".join(store.read(ref, index) for index in range(ref.total)) == weights
        store.finish(ref)
    gone = publishing.port.manifests()[3].weights
    store.drop(gone.root)
    assert set(store.begin(gone)) == set(range(gone.total)), "only the learner forgets versions"
    store.close()
    publishing.small_run.close()


def test_versions_without_their_trees_are_served_all_the_same(tmp_path: Path) -> None:
    """Their files were lost, or an earlier program published the version and its manifest lists the chunks."""
    publishing = Publishing(run_in(tmp_path))
    publishing.publish(3)
    directory = publishing.small_run.blobs.directory
    for path in directory.glob("*.tree"):
        path.unlink()
    store = ChainBlobs(directory)
    for manifest, weights in zip(publishing.port.manifests(), publishing.training, strict=True):
        ref = manifest.weights
        starts = range(0, len(weights), ref.chunk_bytes)
        names = tuple(chunk_digest(weights[start : start + ref.chunk_bytes]) for start in starts)
        assert BlobRef(ref.size_bytes, ref.chunk_bytes, names).tree_hash == ref.tree
        assert len(store.begin(ref)) == ref.total
        for index in range(ref.total):
            assert ref.proves(index, store.read(ref, index), store.proof(ref, index))
        store.drop(ref.root)
    assert not list(directory.glob("*.tree"))
    store.close()
    publishing.small_run.close()


def test_chunks_are_read_by_a_thread_and_taken_once(tmp_path: Path) -> None:
    publishing = Publishing(run_in(tmp_path))
    publishing.publish(3)
    came = threading.Semaphore(0)
    store = ChainBlobs(publishing.small_run.blobs.directory, came.release)
    manifests = publishing.port.manifests()
    blobs = [(each.weights, weights) for each, weights in zip(manifests, publishing.training, strict=True)]
    patch = manifests[2].patches[0].blob
    blobs.append((patch, publishing.small_run.blobs.path(patch.root).read_bytes()))
    for ref, data in blobs:
        store.begin(ref)
        for index in range(ref.total):
            offset, length = ref.span(index)
            assert not store.ready(ref, index)
            assert came.acquire(timeout=30)
            assert store.ready(ref, index)
            assert store.read(ref, index) == data[offset : offset + length]
    assert not store.ready(blobs[0][0], 0), "a chunk is kept until it is taken"
    store.close()
    publishing.small_run.close()


def test_damage_is_noticed_when_a_chunk_is_read(tmp_path: Path) -> None:
    publishing = Publishing(run_in(tmp_path))
    publishing.publish(3)
    patch = publishing.port.manifests()[2].patches[0].blob
    path = publishing.small_run.blobs.path(patch.root)
    path.write_bytes(bytes(patch.size_bytes))
    came = threading.Semaphore(0)
    store = ChainBlobs(publishing.small_run.blobs.directory, came.release)
    store.begin(patch)
    store.ready(patch, 0)
    assert came.acquire(timeout=30)
    assert store.ready(patch, 0)
    with pytest.raises(IntegrityError, match="damaged"):
        store.read(patch, 0)
    path.unlink()
    store.ready(patch, 0)
    assert came.acquire(timeout=30)
    with pytest.raises(IntegrityError, match="cannot be read"):
        store.read(patch, 0)
    store.close()
    publishing.small_run.close()


class HeldStage(InlineStage):
    """A stage whose job ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.job: Job | None = None

    @property
    def busy(self) -> bool:
        return self.job is not None or super().busy

    def start(self, job: Job) -> None:
        assert not self.busy, "one version at a time"
        self.job = job

    def end(self) -> None:
        """End the job in progress."""
        assert self.job is not None
        job, self.job = self.job, None
        super().start(job)


def test_a_version_is_announced_when_its_files_are_durable(tmp_path: Path) -> None:
    publishing = Publishing(run_in(tmp_path))
    publishing.publish(2)
    stage = publishing.stage = HeldStage()
    publishing.start(publishing.small_run.storage)
    weights = publishing.publisher.copy(publishing.engine)
    copy = bytes(weights)
    publishing.publisher.begin(weights, step=2)
    with torch.no_grad():
        for parameter in publishing.model.parameters():
            parameter += 1.0  # training goes on
    shares = [publishing.publisher.written_share]
    assert publishing.publisher.finish() is None
    assert publishing.small_run.journal.policies.count() == 2
    stage.end()
    shares.append(publishing.publisher.written_share)
    assert len(publishing.port.manifests()) == 2
    chain = publishing.small_run.published.chain
    before = (chain.directory / "weights").read_bytes()
    assert publishing.publisher.finish() == 2
    assert publishing.small_run.journal.policies.count() == 3, "signed before the weights file changes"
    assert publishing.port.heads()[-1].version == 2
    assert (chain.directory / "weights").read_bytes() == before, "it is rewritten when the head is out"
    assert publishing.published() == [*publishing.training, copy], "and can be read at once"
    store, ref = ChainBlobs(publishing.small_run.blobs.directory), publishing.port.manifests()[-1].weights
    store.begin(ref)
    assert b"".join(store.read(ref, index) for index in range(ref.total)) == copy
    store.close()
    shares.append(publishing.publisher.written_share)
    stage.end()
    assert publishing.publisher.finish() is None
    assert [*shares, publishing.publisher.written_share] == [0.0, 1.0, 1.0, None], "None: not busy"
    assert (chain.directory / "weights").read_bytes() == copy
    assert publishing.published() == [*publishing.training, copy]
    publishing.small_run.close()
