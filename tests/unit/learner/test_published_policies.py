"""Published policies: exact weights for as long as the staleness window lasts."""

from __future__ import annotations

import pytest

from p2prl.errors import MachineError
from p2prl.learner.published_policies import PublishedPolicies
from p2prl.learner.publishing.patch_choice import patch_bases
from p2prl.models.weights.layout import weights_digest
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import NO_BASE, PolicyManifest
from tests.unit.learner.small_run import SmallRun


def test_policy_is_found_by_version_and_digest(small_run: SmallRun) -> None:
    first, second = small_run.publish(0, step=0), small_run.publish(1, step=2)
    assert small_run.published.newest == second
    assert small_run.published.get(0, first.digest) == first
    assert small_run.published.get(0, second.digest) is None
    assert small_run.published.get(2, second.digest) is None


def test_weights_are_the_published_bytes_beyond_the_cache(small_run: SmallRun) -> None:
    published = [small_run.publish(version, step=version) for version in range(7)]
    for policy in (*published, *published):
        assert (
            weights_digest(small_run.published.weights(policy.manifest.version).open())
            == policy.manifest.weights_digest
        )


def test_versions_outside_the_window_are_dropped_except_the_newest(small_run: SmallRun) -> None:
    for version in range(4):
        small_run.publish(version, step=10 * version)
    small_run.published.drop_before_step(20)
    assert len(small_run.published) == 2
    small_run.published.drop_before_step(1_000)
    newest = small_run.published.newest
    assert newest is not None
    assert newest.manifest.version == 3
    assert len(small_run.published) == 1


def test_deleted_weights_are_named_with_a_remedy(small_run: SmallRun) -> None:
    policy = small_run.publish(0, step=0)
    small_run.blobs.path(policy.manifest.weights.root).unlink()
    with pytest.raises(MachineError, match="weights of version 0 are missing") as caught:
        small_run.published.weights(0).open()
    assert "blobs" in caught.value.remedy


def test_weights_of_version_zero_stay_for_newcomers(small_run: SmallRun) -> None:
    first = small_run.publish(0, step=0)
    for version in range(1, 16):
        small_run.publish(version, step=version)
    weights = small_run.published.weights(0).open()
    small_run.published.drop_before_step(12)
    for version in range(12):  # as the network process does with versions that no node should need
        small_run.blobs.drop(blob_root(small_run, version))
    assert len(small_run.published) == 4
    assert small_run.published.at(0) is None
    bases = {base.version: base for base in patch_bases(16, small_run.published)}
    assert set(bases) == {NO_BASE, 0, 12, 15}
    path = bases[0].path
    assert path is not None
    assert path.read_bytes() == weights
    assert bases[0].digest == first.manifest.weights_digest

    again = PublishedPolicies(small_run.blobs)
    again.restore_first(first.raw)
    assert again.weights_file(0) == (first.manifest.weights_digest, path)
    assert len(again) == 0


def blob_root(small_run: SmallRun, version: int) -> Digest:
    raw = small_run.journal.policies.at_step(version)
    assert raw is not None
    return body_of(open_envelope(raw, now=None), PolicyManifest).weights.root


def test_deleted_weights_are_no_patch_base(small_run: SmallRun) -> None:
    first = small_run.publish(0, step=0)
    small_run.publish(1, step=1)
    small_run.blobs.path(first.manifest.weights_digest).unlink()
    small_run.blobs.path(blob_root(small_run, 1)).unlink()
    assert [base.version for base in patch_bases(16, small_run.published)] == [NO_BASE]


@pytest.mark.parametrize("kept", [1, 2, 6, 20])
def test_a_patch_from_version_zero_is_always_in_the_window(small_run: SmallRun, kept: int) -> None:
    made = 0
    for version in range(40):
        bases = [base.version for base in patch_bases(version, small_run.published)]
        made += 0 in bases
        small_run.publish(version, step=version, bases=bases)
        small_run.published.drop_before_step(version - kept + 1)
        listed = {patch.base for published in small_run.published.all() for patch in published.manifest.patches}
        assert version == 0 or 0 in listed, version
    assert made <= 40 / max(1, min(16, kept / 2)) + 6, "and no more often than that takes"


def test_truncated_weights_are_no_patch_base(small_run: SmallRun) -> None:
    first = small_run.publish(0, step=0)
    path = small_run.blobs.path(Digest(first.manifest.weights_digest))
    path.write_bytes(path.read_bytes()[:-1])
    assert small_run.published.weights_file(0) is None
