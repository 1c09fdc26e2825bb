"""The run of a simulated swarm: its manifest, its initial weights, and the model that all peers share."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p2prl.learner.new_run_plan import RunPlan, run_manifest
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.evaluation.mean_reward import evaluate
from p2prl.models.groups.group_work import GroupWork, SamplingTools
from p2prl.models.run_files.export import export_run_files
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import WeightLayout, layout_of
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import RunManifest
from p2prl.sim.machines import identity_of
from p2prl.sim.shared_engine import SharedModel, SharedSampler
from p2prl.sim.virtual_time import START
from p2prl.tasks.task_registry import task_by_name

_EVALUATION_PROMPTS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedRun:
    """State shared by the learner and the volunteers of one simulated run."""

    seed: int
    key: Identity
    """The learner's."""
    loaded: LoadedModel
    """The policy that is trained."""
    manifest: RunManifest
    manifest_raw: bytes
    run: Digest
    files: Mapping[str, bytes]
    """Run files by name."""
    layout: WeightLayout
    work: GroupWork
    model: SharedModel = field(repr=False)

    @classmethod
    def of(
        cls, loaded: LoadedModel, *, staleness_bound: int, publish_every: int, seed: int, task: str = "chain4"
    ) -> SimulatedRun:
        """A run of `task` that starts from `loaded`."""
        key = identity_of(f"learner {seed}")
        plan = RunPlan(
            name="simulated",
            goal="see a swarm learn on virtual time",
            task=task,
            model=None,
            max_new_tokens=task_by_name(task).max_new_tokens,
            staleness_bound=staleness_bound,
            publish_every=publish_every,
            dtype="bfloat16",
            compute_dtype="float32",
            seed=seed,
        )
        files = export_run_files(loaded)
        layout = layout_of(loaded.model, plan.dtype)
        manifest = run_manifest(plan, layout, key.public_key, files, now=START)
        raw = seal(key, manifest, run=bytes(32), now=START)
        run = envelope_digest(raw)
        return cls(
            seed=seed,
            key=key,
            loaded=loaded,
            manifest=manifest,
            manifest_raw=raw,
            run=run,
            files=files,
            layout=layout,
            work=GroupWork(manifest, run, TextCodec(loaded.tokenizer, loaded.model)),
            model=SharedModel(PolicyModel(_copy(loaded), layout)),
        )

    def prepare(self, manifest: RunManifest, files: Mapping[str, Path]) -> SamplingTools:
        """A volunteer's sampler; nothing is downloaded or loaded."""
        del manifest, files
        return SamplingTools(SharedSampler(self.model), self.work)

    def reward_now(self, prompts: int = 0) -> float:
        """Mean reward of the policy as trained so far, on fresh prompts; 0 for the usual number of them."""
        sampler = TransformersSampler(PolicyModel(_copy(self.loaded), self.layout))
        return evaluate(sampler, self.work, prompts=prompts or _EVALUATION_PROMPTS, seed=self.seed).reward


def _copy(loaded: LoadedModel) -> Any:
    """A copy of the model, so that one can be trained while the other samples."""
    return copy.deepcopy(loaded.model).eval()
