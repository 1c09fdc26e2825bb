"""Preferences of a run folder, scored by the run's first weights before the first update: the reference of DPO."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from p2prl.config.new_run import RunFolder
from p2prl.config.preference_packing import FOLDER, PAIRS_FILE, REFERENCE_FILE
from p2prl.errors import ConfigError
from p2prl.learner.training.memory_config import weight_dtype
from p2prl.learner.training.memory_plan import MemoryPlan
from p2prl.learner.training.policy_gradient import BatchLogprobs
from p2prl.learner.training.preferences import (
    PreferenceConfig,
    PreferencePairs,
    Preferences,
    logprobs_record,
    pair_count,
    pair_tokens,
)
from p2prl.models.base_model.local_base import load_policy
from p2prl.models.logprobs.policy_forward import Row
from p2prl.plain_text import counted
from p2prl.tasks.data.packed_file import PackedFile, PackedWriter

Score = Callable[[Sequence[Row]], Tensor]
"""Log-probs (N, T) of rows of prompt and answer, nats."""

_SCORED_PAIRS = 64
"""Pairs scored in one call: seconds on a processor."""


def check_preferences(folder: RunFolder) -> None:
    """`ConfigError` for settings of preferences that the run does not have, or cannot train on."""
    settings = folder.settings
    if not (folder.directory / FOLDER / PAIRS_FILE).exists():
        if settings.preferences != PreferenceConfig():
            raise ConfigError(
                "[preferences] in run.toml has no meaning here: this run has none",
                remedy="Remove it, or make a run with p2prl init --preferences FILE.",
            )
    elif settings.learner.parallel.ranks > 1:
        raise ConfigError(
            "a run with preferences trains in one process so far", remedy='Set plan = "1" in [learner.parallel].'
        )


def open_preferences(
    folder: RunFolder, memory: MemoryPlan, device: torch.device, on_notice: Callable[[str], None]
) -> Preferences | None:
    """The run's preferences; None without any. The first start scores all answers, as the trainer computes them."""
    pairs, reference = (folder.directory / FOLDER / name for name in (PAIRS_FILE, REFERENCE_FILE))
    if not pairs.exists():
        return None
    if not reference.exists():
        first = folder.directory / "model"
        model = load_policy(first, first, folder.manifest.lora, device=device, dtype=weight_dtype(memory.precision))
        autocast = torch.bfloat16 if memory.precision == "bf16" else None
        policy = BatchLogprobs(model.model, temperature=folder.manifest.sampling.temperature, autocast=autocast)
        score_pairs(pairs, reference, lambda rows: policy.logprobs(rows, memory.rule), on_notice)
    return Preferences(PreferencePairs(pairs, reference), folder.settings.preferences)


def score_pairs(pairs: Path, reference: Path, score: Score, on_notice: Callable[[str], None]) -> None:
    """Write the log-probs of all answers, complete or not at all."""
    file = PackedFile(pairs)
    count, told = pair_count(file), 0
    new = reference.with_suffix(".new")
    with PackedWriter(new) as writer:
        for first in range(0, count, _SCORED_PAIRS):
            end = min(first + _SCORED_PAIRS, count)
            texts = [pair_tokens(file, pair) for pair in range(first, end)]
            rows: list[Row] = [(prompt, answer) for prompt, *answers in texts for answer in answers]
            for (_, answer), found in zip(rows, score(rows).cpu().numpy(), strict=True):
                writer.append(logprobs_record(found[: len(answer)]))
            if (tenths := 10 * end // count) > told and count > _SCORED_PAIRS:
                told = tenths
                on_notice(f"preferences: {end:,} of {counted(count, 'pair')} scored by the first weights")
        writer.finish()
    os.replace(new, reference)
