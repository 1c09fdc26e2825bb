"""Measure a checkpoint, for `p2prl eval` and the demo. Imports torch, so import this module only when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2prl.config.new_run import RunFolder
from p2prl.config.run_data import folder_data
from p2prl.errors import ConfigError
from p2prl.models.base_model.local_base import load_policy
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.evaluation.mean_reward import Evaluation, evaluate
from p2prl.models.evaluation.pass_evaluation import evaluate_prompts, evaluation_sets
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.hardware.device_choice import choose_device
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import TORCH_DTYPES, flatten, layout_of
from p2prl.tasks.evaluation_report import PromptOutcome, Split, answer_rows, task_report

_PROMPTS_AT_ONCE = 128
"""Prompts sampled in one call: enough to fill a device, few enough for progress to be reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What is measured of a checkpoint."""

    prompts: int
    """Most prompts of each task."""
    samples: int
    """Samples of each prompt, beside the greedy completion."""
    splits: Sequence[Split] = ("held-out", "fresh")
    seed: int = 0
    """The same seed gives the same prompts and draws; 0 those of the run's own evaluations."""
    device: str = "cpu"


def measure_checkpoint(
    folder: RunFolder,
    checkpoint: Path,
    wanted: Measurement,
    *,
    on_progress: Callable[[str, float], None],
    on_notice: Callable[[str], None],
    on_answers: Callable[[Iterable[dict[str, object]]], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """The report of each task of the run on prompts it is never trained on. `ConfigError` when it has none.

    `on_notice` gets a message when third-party scorers are not fully confined on this system; `on_answers` a row for
    each completion (`answer_rows`).
    """
    with ExitStack() as resources:
        sampler, work = _tools(folder, checkpoint, wanted.device, resources, on_notice)
        sets = evaluation_sets(
            work,
            folder.manifest,
            folder.run,
            prompts=wanted.prompts,
            samples=wanted.samples,
            splits=wanted.splits,
            pass_above=folder.settings.evaluation.pass_above,
            seed=wanted.seed,
        )
        if not sets:
            raise ConfigError(
                f"the run has no {' or '.join(wanted.splits)} prompts",
                remedy="Held-out rows are given to `p2prl init` with --eval; fresh prompts are those of procedural "
                "tasks. Leave --split out to take what there is.",
            )
        total, done = sum(len(each.prompts) for each in sets), 0
        reports = {}
        for each in sets:
            outcomes: list[PromptOutcome] = []
            while len(outcomes) < len(each.prompts):
                part = each.prompts[len(outcomes) : len(outcomes) + _PROMPTS_AT_ONCE]
                made = evaluate_prompts(sampler, work, part, with_texts=on_answers is not None)
                if on_answers is not None:
                    on_answers(answer_rows(each.task, made, split=each.split, pass_above=each.pass_above))
                outcomes += made
                done += len(part)
                on_progress(f"sampling {each.task}", done / total)
            reports[each.task] = task_report(outcomes, split=each.split, pass_above=each.pass_above)
    return reports


def evaluate_checkpoint(
    folder: RunFolder,
    checkpoint: Path,
    *,
    prompts: int,
    seed: int,
    greedy: bool = False,
    device: str = "cpu",
    on_progress: Callable[[str, float], None],
) -> Evaluation:
    """Measure the reward of a model directory on fresh prompts, with the run's weight and compute types."""
    with ExitStack() as resources:
        sampler, work = _tools(folder, checkpoint, device, resources)
        return evaluate(
            sampler,
            work,
            prompts=prompts,
            seed=seed,
            greedy=greedy,
            on_progress=lambda share: on_progress("sampling", share),
        )


def _tools(
    folder: RunFolder,
    checkpoint: Path,
    device: str,
    resources: ExitStack,
    on_notice: Callable[[str], None] | None = None,
) -> tuple[TransformersSampler, GroupWork]:
    """A sampler with the checkpoint's weights as the run would publish them, and the run's prompts and scorers."""
    manifest = folder.manifest
    first = folder.directory / "model"
    loaded = load_policy(checkpoint, first, manifest.lora, device=choose_device(device), dtype="float32")
    weights = flatten(loaded.model, layout_of(loaded.model, manifest.dtype))
    loaded.model.to(TORCH_DTYPES[manifest.engine_dtype])
    policy = PolicyModel(loaded.model, layout_of(loaded.model, manifest.dtype))
    policy.load(weights)
    data = folder_data(folder)
    codec = TextCodec(loaded.tokenizer, loaded.model)
    scorers = data.start_scorers(on_notice)
    work = GroupWork(folder.manifest, folder.run, codec, data.tasks, scorers, environments=data.environments)
    resources.callback(work.close)
    return TransformersSampler(policy), work
