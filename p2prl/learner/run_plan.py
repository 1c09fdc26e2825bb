"""Plan of a new run, from the options of `p2prl init`, and the run manifest made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p2prl.errors import require
from p2prl.models.pretrained import LoadedModel
from p2prl.models.rewards import RunReward
from p2prl.models.weight_layout import layout_of
from p2prl.protocol import limits
from p2prl.protocol.manifests import (
    DTYPE_BYTES,
    RunFile,
    RunManifest,
    Sampling,
    TaskShare,
    blob_of,
    chunk_bytes_for,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """Parameters of a new run. It has this many fields because each is one option of `p2prl init`."""

    name: str
    goal: str
    task: str
    model: str | None
    """A Hugging Face directory or hub id; None makes the preset's small model."""
    group_size: int = 8
    """G: completions per prompt."""
    temperature: float = 1.0
    """Sampling temperature."""
    max_new_tokens: int = 8
    """Longest completion, tokens."""
    staleness_bound: int = 64
    """S: largest staleness of a rollout that is trained on, learner updates."""
    publish_every: int = 1
    """κ: updates between published versions."""
    reward: str = "success"
    """Reward specification: see `p2prl/algorithms/reward_spec.py`."""
    dtype: str = "float32"
    """Number type weights are published in. In 16 bits an update leaves most weights unchanged: small patches."""
    compute_dtype: str = ""
    """Number type every engine computes in; empty for `dtype`."""
    seed: int = 0
    """Seed of the first weights of a model made here."""

    def __post_init__(self) -> None:
        text = 0 < len(self.goal) <= limits.MAX_TEXT_CHARS and self.goal.isprintable()
        require("goal", self.goal[:40], text, f"one line of 1..{limits.MAX_TEXT_CHARS} characters")
        for name, most in (
            ("group_size", limits.MAX_GROUP_SIZE),
            ("max_new_tokens", limits.MAX_COMPLETION_TOKENS),
            ("publish_every", limits.MAX_STALENESS),
        ):
            require(name, value := getattr(self, name), 1 <= value <= most, f"within 1..{most}")
        require("temperature", self.temperature, 0.01 <= self.temperature <= 100.0, "within 0.01..100")
        RunReward(self.reward, [self.task])
        types = ", ".join(DTYPE_BYTES)
        require("dtype", self.dtype, self.dtype in DTYPE_BYTES, f"one of {types}")
        computes = self.compute_dtype or self.dtype
        require("compute_dtype", self.compute_dtype, computes in DTYPE_BYTES, f"empty or one of {types}")
        # A version stays the newest for κ updates; below κ − 1 all work would be stale before the next version.
        least = self.publish_every - 1
        legal = least <= self.staleness_bound <= limits.MAX_STALENESS
        require(
            "staleness_bound",
            self.staleness_bound,
            legal,
            f"within {least} (publish_every − 1)..{limits.MAX_STALENESS}",
        )


def run_manifest(
    plan: RunPlan, loaded: LoadedModel, learner: bytes, files: Mapping[str, bytes], *, now: float
) -> RunManifest:
    """The manifest of a planned run. `files` are downloaded by volunteers; `learner` is the learner's public key."""
    layout = layout_of(loaded.model, plan.dtype)
    blobs = {name: blob_of(data, chunk_bytes_for(len(data), pieces=8)) for name, data in sorted(files.items())}
    return RunManifest(
        name=plan.name,
        goal=plan.goal,
        learner=learner,
        created_ms=int(now * 1000),
        base_model=plan.model or f"made here: {plan.task}, seed {plan.seed}",
        parameters=layout.parameters,
        layout=layout.digest,
        dtype=plan.dtype,
        files=tuple(RunFile(name, blob) for name, blob in blobs.items()),
        tokenizer=blobs["tokenizer.json"].root,
        tasks=(TaskShare(plan.task, 1.0),),
        sampling=Sampling(plan.temperature, plan.max_new_tokens, plan.group_size),
        staleness_bound=plan.staleness_bound,
        publish_every=plan.publish_every,
        reward=plan.reward,
        licence="Apache-2.0",
        content_policy="Prompts are made by a public program from public seeds; completions are answers to them.",
        compute_dtype=plan.compute_dtype,
    )
