"""A small run for unit tests: the real chain4 model, real keys and envelopes, a journal and policies on disk."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from p2prl.learner.intake.admission import Admission, DecodedGroups, Outcome
from p2prl.learner.intake.replaying import Replayer
from p2prl.learner.journal.groups import StoredGroup
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.new_run_plan import RunPlan, run_manifest
from p2prl.learner.storage import LearnerStorage
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.groups.group_work import GroupWork, ReplayTools
from p2prl.models.run_files.export import export_run_files
from p2prl.models.sampling import sample_all
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import flatten, layout_of, weights_digest
from p2prl.protocol.digests import digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import NO_BASE, Patch, PolicyManifest, blob_of, chunk_bytes_for
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.swarm.policies.catalog import PolicyVersion

NOW = 1_800_000_000.0
STALENESS = 4

torch.set_num_threads(1)


def identity(name: str) -> Identity:
    """The key derived from a name."""
    return Identity(digest("p2prl/test-identity", name.encode())[:16])


class SmallRun:
    """One run, and everything its learner has on disk."""

    def __init__(
        self,
        directory: Path,
        *,
        group_size: int = 2,
        staleness_bound: int = STALENESS,
        dtype: str = "float32",
        task: str = "chain4",
        model: str = "chain4",
        max_new_tokens: int = 8,
        created: float = NOW,
    ) -> None:
        """`model` names the task whose small model is used; `created` is when the run was, by its manifest."""
        self.directory = directory
        self.beacons = itertools.count(1)
        """Beacons of future versions, so that a learner that was killed continues with the next one."""
        self.learner = identity("learner")
        self.model = model
        self.loaded = tiny_model(model, seed=1)
        self.layout = layout_of(self.loaded.model, dtype)
        self.files = export_run_files(self.loaded)
        plan = RunPlan(
            name="unit",
            goal="test",
            task=task,
            model=None,
            max_new_tokens=max_new_tokens,
            staleness_bound=staleness_bound,
            group_size=group_size,
            dtype=dtype,
            compute_dtype="" if dtype == "float32" else "float32",
        )
        self.manifest = run_manifest(plan, self.layout, self.learner.public_key, self.files, now=created)
        self.manifest_raw = seal(self.learner, self.manifest, run=bytes(32), now=NOW)
        self.run = envelope_digest(self.manifest_raw)
        self.work = GroupWork(self.manifest, self.run, TextCodec(self.loaded.tokenizer, self.loaded.model))
        policy = PolicyModel(self.loaded.model, self.layout)
        self.sampler = TransformersSampler(policy)
        self.scorer = TransformersScorer(policy)
        self.storage = LearnerStorage(LearnerPaths(directory), self.manifest)
        self.journal = self.storage.journal
        self.blobs = self.storage.blobs
        self.published = self.storage.published

    def close(self) -> None:
        self.storage.close()

    def publish(self, version: int, *, step: int, bases: Iterable[int] = ()) -> PolicyVersion:
        """Publish a version with distinct weights. Its patches from `bases` are listed, but cannot be applied."""
        weights = bytes(flatten(tiny_model(self.model, seed=100 + version).model, self.layout))
        ref = blob_of(weights, chunk_bytes_for(len(weights), pieces=4))
        self.blobs.add(ref, weights)
        newest = self.published.newest
        manifest = PolicyManifest(
            version=version,
            step=step,
            weights=ref,
            weights_digest=weights_digest(weights),
            previous=b"" if newest is None else newest.digest,
            beacon=digest("p2prl/test-beacon", bytes([version])),
            created_ms=int(NOW * 1000),
            patches=tuple(Patch(base, b"" if base == NO_BASE else bytes(32), ref) for base in bases),
        )
        raw = seal(self.learner, manifest, run=self.run, now=NOW)
        with self.journal.transaction():
            self.journal.policies.add(version, step, raw)
        return self.published.add(raw)

    def group(self, policy: PolicyVersion, peer: Identity, slot: int) -> RolloutGroup:
        """The honest group of a slot."""
        self.scorer.load_weights(self.published.weights(policy.manifest.version).open())
        assignment = self.work.assign(beacon=policy.manifest.beacon, peer=peer.public_key, slot=slot)
        return self.work.pack(
            assignment,
            sample_all(self.sampler, assignment.requests),
            version=policy.manifest.version,
            policy=policy.digest,
            engine=self.sampler.engine_class,
            seconds=0.5,
        )

    def sealed(self, group: RolloutGroup, peer: Identity, *, now: float = NOW) -> StoredGroup:
        """A group as a row of the journal."""
        raw = seal(peer, group, run=self.run, now=now)
        return StoredGroup(envelope_digest(raw), peer.public_key, group.version, group.slot, raw, b"", b"")

    def store(self, *groups: StoredGroup) -> None:
        """Store groups in the journal as the learner does."""
        with self.journal.transaction():
            for group in groups:
                self.journal.groups.store(group, NOW)

    def check(self, *groups: StoredGroup, step: int = 0) -> list[Outcome]:
        """Check groups, in one batch."""
        admitted = Admission(self.storage, DecodedGroups()).admit(groups, step)
        return Replayer(ReplayTools(self.scorer, self.work)).check(admitted)


def altered(group: RolloutGroup, **changes: object) -> RolloutGroup:
    """A group with some fields replaced."""
    return msgspec.structs.replace(group, **changes)


def with_completion(group: RolloutGroup, index: int, **changes: object) -> RolloutGroup:
    """A group with one completion altered."""
    completions = list(group.completions)
    completions[index] = msgspec.structs.replace(completions[index], **changes)
    return altered(group, completions=tuple(completions))


def as_stored(group: StoredGroup, **changes: object) -> StoredGroup:
    """A stored group with some fields replaced."""
    return replace(group, **changes)  # type: ignore[arg-type]
