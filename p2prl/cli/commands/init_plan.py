"""Plan of a new run from the options of `p2prl init`: checked, and complete without torch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from p2prl.cli.commands.init_options import InitOptions
from p2prl.config.data_options import DataOptions, data_plans, environment_plans, task_shares
from p2prl.config.presets import preset_by_name
from p2prl.errors import ConfigError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.rewards.reward_model_folder import reward_model_digest, reward_model_directory, reward_model_kind
from p2prl.protocol import limits
from p2prl.protocol.manifests import TaskShare
from p2prl.tasks.data.data_plan import DataPlan
from p2prl.tasks.data.data_source import require_files
from p2prl.tasks.scorers.spec import parse_spec
from p2prl.tasks.task_registry import task_by_name
from p2prl.tasks.wasm.self_test import EnvironmentPlan

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_DATA_NEW_TOKENS = 256
"""Longest completion of a run of data, unless told: room for the steps of a school problem."""

_MODEL_PART = re.compile(r"\b(orm|prm)\b")
_DEFAULT_PARTS = {"orm": "orm", "prm": "prm:clip+delta"}
"""What a reward model adds to a reward that does not name it."""

_MAX_PROBE_GROUPS = 4_096
"""Groups of a probe, which is over after a minute all the same."""

_MAX_TEMPLATE_CHARS = 256 * 1024
"""Text of a chat template; those of open models have up to 20,000 characters."""


def run_plan(options: InitOptions) -> tuple[RunPlan, str]:
    """The plan, and the text of run.toml. `ConfigError` for the first option that is wrong."""
    if not _NAME.fullmatch(options.name):
        folder, name = Path(options.name).parent, Path(options.name).name
        raise ConfigError(
            f"{options.name!r} is not a valid run name",
            remedy=f"Name the folder that it goes into by itself: p2prl init {name} --in {shlex.quote(str(folder))}"
            if "/" in options.name and _NAME.fullmatch(name)
            else "Use 1 to 64 letters, digits, dots, dashes and underscores; begin with a letter or digit.",
        )
    if options.preferences:
        require_files(Path(options.preferences).expanduser())
    judge = reward_model_directory(options.reward_model) if options.reward_model else None
    shares = task_shares(options.tasks)
    chosen = preset_by_name(options.preset, task=shares[0].task if shares else None)
    data = data_plans(_data_options(options))
    environments = environment_plans(options.environments)
    own = bool(data or environments)
    alone = not own and len(shares) < 2
    longest = [_DATA_NEW_TOKENS] if own else [] if shares else [chosen.max_new_tokens]
    longest += [task_by_name(share.task).max_new_tokens for share in shares]
    plan = RunPlan(
        name=options.name,
        goal=_goal(
            options, chosen.goal, shares if own else shares or (TaskShare(chosen.task, 1.0),), environments, data
        ),
        task=chosen.task if alone else "",
        model=options.model,
        lora_rank=options.lora_rank,
        mix=() if alone else shares,
        data=data,
        environments=environments,
        preferences=Path(options.preferences).expanduser() if options.preferences else None,
        drops_long_preferences=options.drop_long,
        chat_template=_template(options.chat_template),
        system=options.system,
        group_size=options.group_size,
        temperature=options.temperature,
        max_new_tokens=options.max_new_tokens or max(longest),
        staleness_bound=chosen.staleness_bound if options.staleness is None else options.staleness,
        publish_every=options.publish_every or chosen.publish_every,
        reward=options.reward if judge is None else _judged_reward(options.reward, judge),
        reward_model=judge,
        dtype=options.dtype or chosen.dtype,
        # With --dtype alone, engines compute in that type too.
        compute_dtype=options.compute_dtype or ("" if options.dtype else chosen.compute_dtype),
        license=options.license_name,
        seed=options.seed,
    )
    return plan, chosen.settings_text(group_size=options.group_size)


def _judged_reward(reward: str, directory: Path) -> str:
    """The reward with its model's part, as long as it has none, and the model's digest."""
    kind = reward_model_kind(directory)
    if not _MODEL_PART.search(reward):
        reward = f"{reward}+{_DEFAULT_PARTS[kind]}"
    elif _MODEL_PART.findall(reward) != [kind]:
        says = "scores whole completions" if kind == "orm" else "scores the ends of steps"
        raise ConfigError(
            f"--reward {reward[:60]} does not fit the reward model, which {says}",
            remedy=f"Give its part as {kind}, such as success+0.5*{_DEFAULT_PARTS[kind]}.",
        )
    return f"{reward}@{reward_model_digest(directory)}"


def probe_groups(options: InitOptions) -> int | None:
    """Groups of the probe, 0 for none; None for the default. `ConfigError` for a text that is neither."""
    if options.probe is None:
        return None
    if options.probe == "off":
        return 0
    if options.probe.isdecimal() and 1 <= int(options.probe) <= _MAX_PROBE_GROUPS:
        return int(options.probe)
    raise ConfigError(
        f"--probe is {options.probe[:40]!r}", remedy=f"Give off, or a number of groups from 1 to {_MAX_PROBE_GROUPS}."
    )


def _data_options(options: InitOptions) -> DataOptions:
    return DataOptions(
        data=options.data,
        held_out=options.held_out,
        eval_split=options.eval_split,
        scorers=options.scorers,
        length_penalty=options.length_penalty,
        prompt_columns=options.prompt_columns,
        prompts=options.prompts,
        answer_columns=options.answer_columns,
        drop_long=options.drop_long,
        drop_conflicts=options.drop_conflicts,
    )


def _goal(
    options: InitOptions,
    preset_goal: str,
    shares: Sequence[TaskShare],
    environments: Sequence[EnvironmentPlan],
    data: Sequence[DataPlan],
) -> str:
    """The sentence for volunteers: the user's, the preset's for its own model, else what tasks and scorers say."""
    if options.goal is not None:
        return options.goal
    if not data and not environments and options.model is None:
        return preset_goal
    parts = [share.task for share in shares]
    parts += [f"the environment {plan.task}" for plan in environments]
    parts += [f"the data set {plan.task} (scored by {_scorers(plan)})" for plan in data]
    goal = f"train the model on {', '.join(parts)}"
    return goal if len(goal) <= limits.MAX_TEXT_CHARS else f"train the model on {len(parts)} tasks"


def _scorers(plan: DataPlan) -> str:
    """Names of a data set's scorers; a function by its own name, without the path of its file."""
    rewards = parse_spec(plan.scoring).rewards
    return " + ".join(str(reward.options.get("function", reward.scorer)) for reward in rewards)


def _template(choice: str) -> str:
    """The choice of --chat-template, a file as its text."""
    if choice in ("", "on", "off"):
        return choice
    path = Path(choice).expanduser()
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_TEMPLATE_CHARS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--chat-template {choice} cannot be read: {error}", remedy="Give on, off, or a file with a template."
        ) from error
    if not text.strip() or len(text) > _MAX_TEMPLATE_CHARS:
        size = f"more than {_MAX_TEMPLATE_CHARS:,} characters" if text.strip() else "no text"
        raise ConfigError(f"{choice} has {size}, which is no chat template", remedy="Give another file.")
    return text
