"""Presets: named values for every option of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from p2prl.errors import ConfigError
from p2prl.learner.new_run_plan import USUAL_GROUP_SIZE
from p2prl.net.listen_addresses import DEFAULT_LISTEN
from p2prl.plain_text import counted
from p2prl.tasks.task_registry import task_by_name

_CHAIN4_SETTINGS = """\
# Settings of this run that may change between starts. What volunteers rely on (model, task, sampling, staleness
# bound) is in the signed run.manifest and cannot change.

device = "cpu"            # a model this small is faster on a CPU than across a bus
threads = 1

[learner]
groups_per_update = 16    # prompts per update, with {completions} each
updates = {updates:<16}# 0 goes on until stopped
checkpoint_every = 10     # updates; a crash replays what came after from the journal
publish = "manifest"      # "auto": no faster than versions reach the swarm, as measured
dead_band_ulp = 0         # smaller changes of a weight are not published: docs/benchmarks/dead_band.md

[learner.optimizer]
learning_rate = 2.5e-4    # 5e-4 forgets under delay: docs/benchmarks/staleness.md
warmup_updates = 10

[loss]
name = "topr"             # failures count as far as the policy still samples them: stable at any staleness
options = {{negative_high = 0.25}} # a failure counts a quarter at most; leave out with another loss
                          # other losses, guards, probation and a reference: docs/algorithms.md

[network]
listen = {listen}
"""

_SMALL_MODEL_SETTINGS = """\
# Settings of this run that may change between starts. What volunteers rely on (model, tasks, sampling, staleness
# bound) is in the signed run.manifest and cannot change.

device = "cpu"            # a model of a few million parameters; on a GPU machine, "auto"
threads = 1               # volunteers on the same machine need the others

[learner]
groups_per_update = 16    # prompts per update, with {completions} each
updates = {updates:<16}# 0 goes on until stopped
checkpoint_every = 10     # updates; a crash replays what came after from the journal
publish = "manifest"      # "auto": no faster than versions reach the swarm, as measured

[learner.optimizer]
learning_rate = 2e-4      # at 5e-4 this model settles on wrong answers before it has seen enough right ones
warmup_updates = 5

[loss]
name = "topr"             # failures count as far as the policy still samples them: stable at any staleness
options = {{negative_high = 0.25}} # a failure counts a quarter at most; leave out with another loss

[network]
listen = {listen}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """Values a preset fills in."""

    goal: str
    task: str
    max_new_tokens: int
    staleness_bound: int
    publish_every: int
    dtype: str
    """Number type weights are published in."""
    compute_dtype: str
    """Number type engines compute in."""
    settings: str
    """Template of run.toml."""
    updates: int
    makes_model: bool = False
    """`init` makes the small language model of `p2prl/models/small_model`, and the preset's data if it has any
    (`p2prl/config/preset_materials.py`); else the task's own small model."""

    def settings_text(self, *, updates: int | None = None, group_size: int = USUAL_GROUP_SIZE) -> str:
        """The text of run.toml for groups of this size, with another number of updates if one is given."""
        return self.settings.format(
            updates=self.updates if updates is None else updates,
            completions=counted(group_size, "completion"),
            listen=json.dumps(DEFAULT_LISTEN),
        )


_SMALL_MODEL = Preset(
    goal="",
    task="",
    max_new_tokens=48,
    staleness_bound=16,
    publish_every=2,
    dtype="bfloat16",
    compute_dtype="float32",
    settings=_SMALL_MODEL_SETTINGS,
    updates=200,
    makes_model=True,
)

PRESETS = {
    "chain4": Preset(
        goal="teach a 59,000-parameter model to work four-step arithmetic out instead of guessing",
        task="chain4",
        max_new_tokens=8,
        staleness_bound=128,
        publish_every=2,
        dtype="bfloat16",  # patches are a fifth of the weights here; in float32 they would be three fifths
        compute_dtype="float32",  # exact for bfloat16 weights, and as fast on a CPU
        settings=_CHAIN4_SETTINGS,
        updates=200,
    ),
    "arithmetic": replace(
        _SMALL_MODEL, task="arithmetic", goal="teach a 5-million-parameter language model to solve word problems"
    ),
    "countdown": replace(
        _SMALL_MODEL,
        task="countdown",
        goal="teach a 5-million-parameter language model to reach a number from three others",
        max_new_tokens=64,
    ),
    "reasoning": replace(
        _SMALL_MODEL, task="reasoning", goal="teach a 5-million-parameter language model puzzles of reasoning-gym"
    ),
    "guess": Preset(
        goal="teach a small model to find a number by asking: higher or lower?",
        task="guess",
        max_new_tokens=28,
        staleness_bound=128,
        publish_every=2,
        dtype="bfloat16",
        compute_dtype="float32",
        settings=_CHAIN4_SETTINGS,  # a model of the same size, and episodes of a few dozen tokens
        updates=200,
    ),
}


def preset_by_name(name: str, *, task: str | None = None) -> Preset:
    """A preset, with the goal and completion limit of another task where one is named.

    `ConfigError` when there is no such preset, or no such task is installed.
    """
    if name not in PRESETS:
        raise ConfigError(f"no preset is called {name!r}", remedy=f"Presets: {', '.join(PRESETS)}")
    preset = PRESETS[name]
    if task is None or task == preset.task:
        return preset
    spec = task_by_name(task)
    return replace(preset, task=task, goal=spec.goal, max_new_tokens=spec.max_new_tokens)
