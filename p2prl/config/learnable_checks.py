"""Checks that a new run can learn, made before its folder is put in place: its scorers, and a probe of its policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from p2prl.algorithms.reward_spec import parse_reward
from p2prl.clock import SystemClock
from p2prl.config.reward_model_files import open_reward_model
from p2prl.config.run_data import RunData, folder_data
from p2prl.config.run_folder import Folder
from p2prl.errors import ConfigError
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.evaluation.new_run_probe import probe
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.hardware.device_choice import choose_device
from p2prl.models.rewards.scorer_check import check_scorer
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import TORCH_DTYPES, layout_of
from p2prl.protocol.manifests import RunManifest
from p2prl.tasks.data.data_plan import DataPlan
from p2prl.tasks.data.data_source import data_files
from p2prl.tasks.new_run_verdict import ProbeFacts, figures_text, judge
from p2prl.tasks.sandbox.pool import ScorerPool
from p2prl.tasks.scorers.build import RowCheck
from p2prl.tasks.scorers.spec import parse_spec

PROBE_GROUPS = 64
"""Groups of a probe unless told: at 8 completions each, a policy that is right once in 100 shows it in all but one
probe of 170."""

PROBE_S = 60.0
"""Longest probe: a volunteer would wait longer for the model's download."""


TRIED_FIRST_BYTES = 32 << 20
"""Data that takes longer than a probe to pack: its first rows are tried before."""

_HEAD_ROWS = 2048
"""Rows tried of each file. The verdict on ten times as many would be no other, and these take seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InitChecks:
    """What `init` tries before it makes a run."""

    probe_groups: int = PROBE_GROUPS
    """Groups of the probe; 0 for none."""
    force: bool = False
    """Make the run although a check says that it cannot learn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRun:
    """A run folder that is complete but for its place."""

    folder: Folder
    loaded: LoadedModel
    """The first weights. A probe moves them to its device and number type, so nothing may use them afterwards."""
    template_unused: bool
    """Whether the model has a chat template that the run does not use."""
    uses_template: bool


def head_of(data: Sequence[DataPlan]) -> tuple[DataPlan, ...]:
    """The first rows of data sets that are long in packing, to try a run with; empty where nothing is."""
    if sum(_size_bytes(plan.path) for plan in data) < TRIED_FIRST_BYTES:
        return ()
    return tuple(replace(plan, most_rows=_HEAD_ROWS) for plan in data)


def _size_bytes(path: Path) -> int:
    """Bytes of the files of a source; 0 for rows that a library makes."""
    try:
        files = path.rglob("*") if path.is_dir() else data_files(path)
        return sum(each.stat().st_size for each in files if each.is_file())
    except OSError:
        return 0  # opening it says what is wrong


def check_learnable(new: NewRun, wanted: InitChecks, on_progress: Callable[[str, float], None]) -> list[str]:
    """Notices for the user about a new run. `ConfigError` when it cannot learn."""
    data = folder_data(new.folder)
    notices: list[str] = []
    scorer = data.start_scorers(notices.append)
    try:
        if scorer is not None:
            notices += _check_scorers(new, wanted, data, scorer, on_progress)
        if wanted.probe_groups:
            with _excused(wanted, notices):
                _probe(new, wanted.probe_groups, data, scorer, notices, on_progress)
        return notices
    finally:
        if scorer is not None:
            scorer.close()


def check_head(new: NewRun, wanted: InitChecks, on_progress: Callable[[str, float], None]) -> None:
    """Check a run of the `head_of` its data. `ConfigError`, which says what was tried, when it cannot learn."""
    try:
        check_learnable(new, wanted, on_progress)
    except ConfigError as error:
        raise ConfigError(
            f"{error} (tried with the first {_HEAD_ROWS:,} rows of each file)",
            remedy=f"{error.remedy} If the file is sorted, shuffle it: its first rows are unlike the rest.",
        ) from error


def _check_scorers(
    new: NewRun, wanted: InitChecks, data: RunData, scorer: ScorerPool, on_progress: Callable[[str, float], None]
) -> list[str]:
    notices: list[str] = []
    data_sets = new.folder.manifest.data_sets
    for number, held in enumerate(data_sets):
        on_progress(f"trying the scorer of {held.task}", number / len(data_sets))
        rows = data.tasks[held.task].training.rows
        assert rows is not None, "a run folder has the rows of its data"
        with _excused(wanted, notices):
            notices.append(check_scorer(held.task, rows, held.rows, RowCheck(held.scoring).right_answer, scorer))
    return [notice for notice in notices if notice]


def _probe(
    new: NewRun,
    groups: int,
    data: RunData,
    scorer: ScorerPool | None,
    notices: list[str],
    on_progress: Callable[[str, float], None],
) -> None:
    """Add what a probe shows to the notices. `ConfigError` when nothing can be learned, or nothing scored."""
    manifest, loaded = new.folder.manifest, new.loaded
    device = choose_device("auto")
    codec = TextCodec(loaded.tokenizer, loaded.model)
    reward_model = open_reward_model(new.folder, device, on_notice=lambda _: None)
    work = GroupWork(manifest, new.folder.run, codec, data.tasks, scorer, reward_model, data.environments)
    layout = layout_of(loaded.model, manifest.dtype)
    policy = PolicyModel(loaded.model.to(device, TORCH_DTYPES[manifest.engine_dtype]), layout)
    stage = f"probing the model on {_device_name(device)}"
    on_progress(stage, 0.0)
    result = probe(
        TransformersSampler(policy),
        work,
        groups=groups,
        limit_s=PROBE_S,
        clock=SystemClock(),
        on_progress=lambda share: on_progress(stage, share),
    )
    if not result.groups:
        notices.append(
            f"The probe was cut off after {PROBE_S:.0f} s, before its first group ended: the run is slow here."
        )
        return
    notices += [f"Probe of {task}: {figures_text(figures)}." for task, figures in result.tasks.items()]
    cut = "" if result.complete else f", cut off before {groups} were done"
    notices.append(f"{result.groups} groups on {_device_name(device)}: {result.tokens_per_s:,.0f} tokens/s{cut}.")
    facts = ProbeFacts(
        max_new_tokens=manifest.sampling.max_new_tokens,
        room=None if codec.context is None else max(0, codec.context - result.longest_prompt),
        template_unused=new.template_unused,
        uses_template=new.uses_template,
        full_rewards=_full_rewards(manifest),
    )
    notices += judge(result.tasks, facts)


def _full_rewards(manifest: RunManifest) -> dict[str, float]:
    """Reward of a right answer, by task."""
    weight = parse_reward(manifest.reward).success_weight
    values = {held.task: parse_spec(held.scoring).full_value for held in manifest.data_sets}
    return {share.task: weight * values.get(share.task, 1.0) for share in manifest.tasks}


@contextmanager
def _excused(wanted: InitChecks, notices: list[str]) -> Iterator[None]:
    """Make a refusal a notice, where the user wants the run all the same."""
    try:
        yield
    except ConfigError as error:
        if not wanted.force:
            raise
        notices.append(f"Made all the same, as --force says: {error}.")


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
