"""A learner's storage: the journal, the published blobs, and the policy versions inside the staleness window."""

from __future__ import annotations

from p2prl.learner.journal.journal import Journal
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.published_policies import PublishedPolicies
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.run_blobs import blobs_for


class LearnerStorage:
    """Everything of one run that outlives the process, except the checkpoints' contents."""

    def __init__(self, paths: LearnerPaths, manifest: RunManifest) -> None:
        self.paths = paths
        self.manifest = manifest
        self.journal = Journal(paths.journal)
        self.blobs = DiskBlobStore(paths.blobs)
        self.published = PublishedPolicies(self.blobs)

    @property
    def version(self) -> int:
        """Newest published version; −1 before the first."""
        newest = self.published.newest
        return -1 if newest is None else newest.manifest.version

    def window_start(self, step: int) -> int:
        """First step whose policies a group may still name at learner step `step`."""
        return step - self.manifest.staleness_bound

    def restore_published(self, step: int) -> list[int]:
        """Load the policy versions of the window at `step` from the journal, after a start.

        The journal says which version is the newest: one that was being written and was never signed is taken back.
        Returns the versions of the window whose weights are not on disk any more. Their groups count as too stale.
        """
        if (first := self.journal.policies.at_step(0)) is not None:
            self.published.restore_first(first)
        for raw in self.journal.policies.since_step(self.window_start(step)):
            self.published.add(raw)
        newest = self.published.newest
        if newest is None:
            self.published.chain.settle(None, None)
        else:
            self.published.chain.settle(newest.manifest.version, newest.manifest.weights.root)
        return self.published.note_lost()

    def policies_to_announce(self, step: int, *, sweep: bool = True) -> list[bytes]:
        """Manifest envelopes a volunteer may still need at `step`, oldest first, as far as their files are in place.

        With `sweep`, deletes the blobs of all others: not while a version is being written.
        """
        policies = self.journal.policies.since_step(self.window_start(step))
        if not sweep:
            return [raw for raw in policies if self.published.has(raw)]
        self.published.sweep(policies, besides=[file.blob.root for file in blobs_for(self.manifest, Role.LEARNER)])
        return policies

    def close(self) -> None:
        """Close the files; everything is already on disk."""
        self.journal.close()
        self.blobs.close()
