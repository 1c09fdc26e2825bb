"""Plan of a new run, from the options of `p2prl init`, and the run manifest made from it. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from p2prl.errors import ConfigError
from p2prl.protocol import limits
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.protocol.manifests import (
    DTYPE_BYTES,
    DataSet,
    RunFile,
    RunManifest,
    Sampling,
    TaskShare,
    blob_of,
    chunk_bytes_for,
)
from p2prl.protocol.reward_text import reward_model_of
from p2prl.protocol.rollout_group import largest_group_bytes
from p2prl.protocol.run_file_names import module_name
from p2prl.tasks.data.data_plan import DataPlan
from p2prl.tasks.environment import Environment
from p2prl.tasks.scorers.spec import parse_spec
from p2prl.tasks.task_registry import TASKS, task_by_name
from p2prl.tasks.wasm.self_test import EnvironmentPlan

if TYPE_CHECKING:
    from p2prl.models.weights.layout import WeightLayout

OWN_LICENSE = "Apache-2.0"
"""License of the weights of a model made here."""

USUAL_GROUP_SIZE = 8
"""Completions per prompt of a run that names no other number."""

_PART = r"(?:[0-9.]+\*)?(?:success|outcome|orm|(?:process|prm)(?::clip\+delta|:clip|:delta)?)"
_REWARD = re.compile(rf"{_PART}(?:\+{_PART})*(?:@[0-9a-f]{{32}})?")
"""Shape of a reward. `parse_reward` decides, but importing it takes torch: a typing error should not cost that wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """Parameters of a new run. It has this many fields because each is one option of `p2prl init`."""

    name: str
    goal: str
    task: str
    """The procedural task of a run with one alone; empty for a run of data alone, or with a `mix`."""
    model: str | None
    """A Hugging Face directory or hub id; None makes the preset's small model."""
    mix: tuple[TaskShare, ...] = ()
    """Procedural tasks with their weights, instead of `task`."""
    data: tuple[DataPlan, ...] = ()
    """Data tasks."""
    environments: tuple[EnvironmentPlan, ...] = ()
    """Environments that the run brings."""
    preferences: Path | None = None
    """A file of preferences, or a pattern or name as `--data` takes them."""
    drops_long_preferences: bool = False
    """Whether preferences that are too long for the model are left out."""
    reward_model: Path | None = None
    """Directory of a reward model, whose digest ends `reward`."""
    chat_template: str = ""
    """`on`, `off`, a template's text, or empty for the model's own if it has one."""
    system: str = ""
    """System prompt of every prompt; needs a chat template."""
    base_model: str = ""
    """Name of the model for people, never a path; empty until the model is loaded."""
    group_size: int = USUAL_GROUP_SIZE
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
    lora_rank: int = 0
    """Rank of the adapters that alone are trained; 0 to train all weights."""
    license: str | None = None
    """License of the trained weights; None for that of the model's card, or `OWN_LICENSE` for a model made here."""
    seed: int = 0
    """Seed of the first weights of a model made here."""

    @property
    def sampling(self) -> Sampling:
        """The run's sampling settings."""
        return Sampling(self.temperature, self.max_new_tokens, self.group_size)

    @property
    def procedural(self) -> tuple[TaskShare, ...]:
        """The installed procedural tasks of the mix with their weights."""
        return self.mix or ((TaskShare(self.task, 1.0),) if self.task else ())

    @property
    def shares(self) -> tuple[TaskShare, ...]:
        """All tasks of the mix with their weights."""
        brought = (TaskShare(each.task, each.weight) for each in self.environments)
        return (*self.procedural, *brought, *(TaskShare(data.task, data.weight) for data in self.data))

    @property
    def brought(self) -> dict[str, Environment]:
        """The environments that the run brings, by the name of the task."""
        return {each.task: each.environment for each in self.environments}

    @property
    def modules(self) -> dict[str, bytes]:
        """Their run files by name."""
        return {module_name(each.task): each.module for each in self.environments}

    def __post_init__(self) -> None:
        own = OWN_LICENSE if self.license is None else self.license
        lines = (("--goal", self.goal, "'add numbers'"), ("--license", own, "apache-2.0"))
        for option, text, sample in lines:
            legal = 0 < len(text) <= limits.MAX_TEXT_CHARS and text.isprintable()
            _check(option, text[:40], legal, f"one line of 1 to {limits.MAX_TEXT_CHARS} characters", sample)
        for option, value, most, example in (
            ("--group-size", self.group_size, limits.MAX_GROUP_SIZE, USUAL_GROUP_SIZE),
            ("--max-new-tokens", self.max_new_tokens, limits.MAX_COMPLETION_TOKENS, 64),
            ("--publish-every", self.publish_every, limits.MAX_STALENESS, 1),
        ):
            _check(option, value, 1 <= value <= most, f"from 1 to {most}", example)
        legal = 0 <= self.lora_rank <= limits.MAX_LORA_RANK
        _check("--lora", self.lora_rank, legal, f"from 1 to {limits.MAX_LORA_RANK}", 16)
        _check("--temperature", self.temperature, 0.01 <= self.temperature <= 100.0, "from 0.01 to 100", 1.0)
        self._check_tasks()
        shape = "parts joined by +, success among them"
        _check("--reward", self.reward[:60], bool(_REWARD.fullmatch(self.reward)), shape, "success+0.2*process:clip")
        if (self.reward_model is None) == bool(reward_model_of(self.reward)):
            raise ConfigError(
                f"--reward {self.reward[:60]} names a reward model, and there is no other part of one",
                remedy="Give --reward-model FOLDER beside it.",
            )
        types = ", ".join(DTYPE_BYTES)
        _check("--dtype", self.dtype, self.dtype in DTYPE_BYTES, f"one of {types}", "bfloat16")
        computes = self.compute_dtype or self.dtype
        _check("--compute-dtype", self.compute_dtype, computes in DTYPE_BYTES, f"one of {types}", "float32")
        # A version stays the newest for κ updates; below κ − 1 all work would be stale before the next version.
        least = self.publish_every - 1
        legal = least <= self.staleness_bound <= limits.MAX_STALENESS
        span = f"from {least} (--publish-every less 1) to {limits.MAX_STALENESS}"
        _check("--staleness", self.staleness_bound, legal, span, max(64, least))
        check_groups_travel(self.group_size, self.max_new_tokens)

    def _check_tasks(self) -> None:
        """`ConfigError` for a mix that no run can have."""
        for share in self.procedural:
            task_by_name(share.task)
        own = [each.task for each in self.environments] + [data.task for data in self.data]
        for name in own:
            if name in TASKS.names():
                raise ConfigError(
                    f"{name!r} is the name of a task that is installed",
                    remedy="Give it another one: --data NAME=FILE, --environment NAME=FILE.",
                )
        for data in self.data:
            penalty = parse_spec(data.scoring).length_penalty if data.scoring else None
            if penalty is not None and not penalty.of(self.max_new_tokens):
                first = penalty.max_tokens - penalty.cache_tokens + 1
                raise ConfigError(
                    f"--length-penalty is from {first} tokens on, and completions have at most {self.max_new_tokens}",
                    remedy=f"Give a lower one, or --max-new-tokens {penalty.max_tokens}.",
                )
        count = len(self.shares)
        if not 1 <= count <= limits.MAX_TASKS:
            raise ConfigError(
                f"the run has {count} tasks", remedy=f"Give 1 to {limits.MAX_TASKS}: --data, --environment, --task."
            )
        if self.model is None and not self.task:
            raise ConfigError(
                "there is no model for these tasks",
                remedy="Name a Hugging Face directory or hub id, --model MODEL, or try the small model that comes with "
                "--preset arithmetic.",
            )


def check_groups_travel(group_size: int, max_new_tokens: int, *, most_bytes: int = limits.MAX_GROUP_BYTES) -> None:
    """Raise `ConfigError` when groups of these sampling settings may be larger than the wire carries."""
    largest = largest_group_bytes(group_size, max_new_tokens)
    if largest > most_bytes:
        without_tokens = largest_group_bytes(group_size, 0)
        token_bytes = largest - without_tokens
        longest = max_new_tokens * max(0, most_bytes - without_tokens) // token_bytes
        raise ConfigError(
            f"a group of these settings cannot be sent: --group-size {group_size} x --max-new-tokens {max_new_tokens} "
            f"x 6 bytes = {token_bytes:,} bytes, and {without_tokens:,} for the longest prompt and the rest, exceed "
            f"the {most_bytes:,} bytes of the largest group",
            remedy=f"Use a smaller --group-size, or --max-new-tokens {longest}."
            if longest
            else "Use a smaller --group-size.",
        )


def _check(option: str, value: object, legal: bool, legal_values: str, example: object) -> None:
    """Raise `ConfigError` naming an option, the values it takes and a working example, unless `legal`."""
    if not legal:
        raise ConfigError(
            f"{option} is {value!r}; it must be {legal_values}", remedy=f"For example: {option} {example}"
        )


def run_manifest(
    plan: RunPlan,
    layout: WeightLayout,
    learner: bytes,
    files: Mapping[str, bytes],
    *,
    lora: LoraSpec | None = None,
    data_sets: tuple[DataSet, ...] = (),
    prompt_frame: tuple[str, str] = ("", ""),
    turn_frame: tuple[str, str] = ("", ""),
    now: float,
) -> RunManifest:
    """The manifest of a planned run.

    `layout` is that of the weights; `files` are downloaded by volunteers; `learner` is the learner's public key;
    `lora` are the adapters of the layout, if any; `data_sets` are the plan's data, packed; `prompt_frame` is the text
    around every procedural prompt, and `turn_frame` that around every message of an environment.
    """
    blobs = {name: blob_of(data, chunk_bytes_for(len(data), pieces=8)) for name, data in sorted(files.items())}
    return RunManifest(
        name=plan.name,
        goal=plan.goal,
        learner=learner,
        created_ms=int(now * 1000),
        base_model=plan.base_model or _base_model(plan),
        parameters=layout.parameters,
        layout=layout.digest,
        dtype=plan.dtype,
        files=tuple(RunFile(name, blob) for name, blob in blobs.items()),
        tokenizer=blobs["tokenizer.json"].root,
        tasks=plan.shares,
        sampling=plan.sampling,
        staleness_bound=plan.staleness_bound,
        publish_every=plan.publish_every,
        reward=plan.reward,
        licence=plan.license or OWN_LICENSE,
        content_policy=_content_policy(plan),
        compute_dtype=plan.compute_dtype,
        data_sets=data_sets,
        prompt_frame=prompt_frame,
        turn_frame=turn_frame,
        lora=lora,
    )


def _base_model(plan: RunPlan) -> str:
    """Name of a model that has none of its own. The option's text is left out: it may be a path."""
    return f"made here: {plan.task}, seed {plan.seed}" if plan.model is None else "a model without a name"


def _content_policy(plan: RunPlan) -> str:
    """Nature of the prompts, for volunteers to read."""
    made = "made by a public program from public seeds"
    brought = "made from public seeds by an environment that the learner's owner chose"
    names = ", ".join(data.task for data in plan.data)
    rows = f"rows of {'data sets' if len(plan.data) > 1 else 'a data set'} that the learner's owner chose ({names})"
    parts = ((rows, plan.data), (brought, plan.environments), (made, plan.procedural))
    origin = " or ".join(part for part, there in parts if there)
    text = f"Prompts are {origin}; completions are answers to them."
    return text if len(text) <= limits.MAX_TEXT_CHARS else text.replace(f" ({names})", "")
