"""The plan of ranks of a run with `plan = "auto"`: chosen by a profile at the first start, and kept beside the run.

RUN/host-plan.json has the plans with their predicted times, the host and versions that they were timed on and the
settings that they were timed for. A start that is equal in all of these takes the same plan, and profiles nothing.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
import transformers

from p2prl import __version__
from p2prl.config.host_launch import HostLaunch
from p2prl.config.learner_memory import LearnerMemory, learner_memory
from p2prl.config.new_run import RunFolder
from p2prl.errors import ConfigError, MachineError
from p2prl.learner.training.memory_config import MemoryConfig
from p2prl.learner.training.memory_model import memory_needs
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.learner.training.update_engine import EngineSettings
from p2prl.models.hardware.device_choice import choose_device, use_threads
from p2prl.plain_text import counted
from p2prl.planning.rank_plan_record import HostChoice, KeptPlan, choice_lines, read_choice, write_choice
from p2prl.planning.rank_plans import HostPlan, RankedPlan, Work, best_of_each, fitted, plans_within, rank_plans
from p2prl.planning.rank_profile import Host, profile

_ROW_TOKENS = 512
"""Longest row of a profile: longer ones cost as much a token, but for attention, and take the profile's time."""


def with_host_plan(folder: RunFolder, on_notice: Callable[[str], None]) -> RunFolder:
    """The folder with a plan in place of `auto`, and micro-batches with it. `ConfigError` under torchrun,
    `MachineError` when no plan fits."""
    if not folder.settings.learner.parallel.is_auto:
        return folder
    if HostLaunch.of(os.environ) is not None:
        raise ConfigError(
            "plan = auto chooses for one host, and torchrun started this process",
            remedy="Name a plan with as many ranks as torchrun starts: --plan dp2pp2.",
        )
    device = choose_device(folder.settings.device)
    if device.type != "cpu" or folder.manifest.lora is not None or _one_process_only(folder):
        on_notice("plan auto: one process, as ranks train whole models on the CPU with full optimizer states")
        return _planned(folder, ParallelConfig(), None)
    use_threads(folder.settings.threads)
    memory = learner_memory(folder, device)
    asked = _asked(folder, memory, threads=torch.get_num_threads())
    kept = read_choice(folder.directory)
    if kept is None or (kept.host, kept.versions, kept.settings) != (_host(), _versions(), asked):
        on_notice("plan auto: timing plans of ranks, about a minute at most")
        kept = _chosen(folder, memory, asked)
        write_choice(folder.directory, kept)
    for line in choice_lines(kept):
        on_notice(line)
    best = kept.plans[0]
    return _planned(folder, ParallelConfig(plan=best.plan, zero=best.zero), best)


def _one_process_only(folder: RunFolder) -> bool:
    return folder.settings.learner.memory.optimizer_states == "8bit"


def _planned(folder: RunFolder, parallel: ParallelConfig, best: KeptPlan | None) -> RunFolder:
    learner = folder.settings.learner
    memory = learner.memory
    if best is not None:
        memory = replace(
            memory,
            micro_batch_tokens=best.micro_batch_tokens,
            checkpointing="on" if best.checkpointing else "off",
        )
    learner = replace(learner, parallel=parallel, memory=memory)
    return replace(folder, settings=replace(folder.settings, learner=learner))


def _chosen(folder: RunFolder, memory: LearnerMemory, asked: str) -> HostChoice:
    """Profile, and score every plan that fits."""
    config, sampling = folder.settings.learner.memory, folder.manifest.sampling
    threads = torch.get_num_threads()
    parallels = rank_plans(threads)
    limit = _Limit(memory, config)
    plans = plans_within(parallels, limit.most_tokens, row_tokens=memory.longest_row)
    if not plans:
        limit.refuse()
    if config.micro_batch_tokens:
        plans = [plan for plan in plans if plan.tokens == limit.most_tokens(plan.parallel, plan.checkpointing)]
    fitting = [each for each in parallels if any(plan.parallel == each for plan in plans)]
    found = profile(_host_of(folder, memory, threads), fitting, row_tokens=min(memory.longest_row, _ROW_TOKENS))
    rows = folder.settings.learner.groups_per_update * sampling.group_size
    order = fitted(found.probes, plans, Work(layers=memory.shape.layers, rows=rows, row_tokens=memory.longest_row))
    if not order:
        raise ConfigError(
            "no plan of ranks that fits can train this model",
            remedy='Set plan = "1" in [learner.parallel] of run.toml.',
        )
    timed = {each.plan.text for each in order}
    return HostChoice(
        host=_host(),
        versions=_versions(),
        settings=asked,
        profile_s=found.seconds,
        plans=[_kept(each, memory) for each in best_of_each(order)],
        without_memory=_texts(each for each in parallels if each not in fitting),
        without_time=[text for text in _texts(fitting) if text not in timed],
    )


class _Limit:
    """Micro-batches that fit."""

    def __init__(self, memory: LearnerMemory, config: MemoryConfig) -> None:
        self._memory, self._config = memory, config
        self._refusal: MachineError | None = None

    def most_tokens(self, parallel: ParallelConfig, checkpointing: bool) -> int:
        """Tokens of the largest micro-batch, 0 if not even a row fits or the settings say otherwise."""
        wanted = "on" if checkpointing else "off"
        if self._config.checkpointing not in ("auto", wanted):
            return 0
        config = replace(self._config, checkpointing=wanted)  # type: ignore[arg-type]
        try:
            return self._memory.plan(config, parallel, ranks_here=parallel.ranks).rule.tokens
        except MachineError as error:
            self._refusal = error
            return 0

    def refuse(self) -> None:
        """No plan fits."""
        assert self._refusal is not None
        raise self._refusal


def _host_of(folder: RunFolder, memory: LearnerMemory, threads: int) -> Host:
    """The model and settings to time; the value head and the reference cost little beside the model, or are scored
    like it."""
    settings = EngineSettings(
        temperature=folder.manifest.sampling.temperature,
        optimizer=folder.settings.learner.optimizer,
        precision=memory.setup.precision,
        reference=folder.settings.loss.reference_config(),
    )
    attention = folder.settings.learner.memory.attention
    return Host(model=folder.directory / "model", settings=settings, attention=attention, threads=threads)


def _kept(found: RankedPlan, memory: LearnerMemory) -> KeptPlan:
    plan = found.plan
    rule = MicroBatchRule(tokens=plan.tokens, checkpointing=plan.checkpointing)
    return KeptPlan(
        plan=plan.parallel.name,
        zero=plan.parallel.zero,
        micro_batch_tokens=plan.tokens,
        checkpointing=plan.checkpointing,
        seconds=found.seconds,
        memory_bytes=memory_needs(memory.shape, replace(memory.setup, parallel=plan.parallel), rule).total,
    )


def _texts(plans: Iterable[ParallelConfig]) -> list[str]:
    return [HostPlan(parallel=each, tokens=0, checkpointing=False).text for each in plans]


def _host() -> str:
    return f"{platform.node()}, {platform.machine()}, {counted(os.cpu_count() or 1, 'processor')}"


def _versions() -> str:
    return f"p2prl {__version__}, torch {torch.__version__}, transformers {transformers.__version__}"


def _asked(folder: RunFolder, memory: LearnerMemory, *, threads: int) -> str:
    """Everything that a plan is chosen by, but for the memory that happens to be free."""
    learner = folder.settings.learner
    return "; ".join(
        (
            counted(threads, "thread"),
            f"{learner.groups_per_update} groups of {folder.manifest.sampling.group_size}",
            f"{memory.longest_row} tokens",
            repr(memory.shape),
            repr(learner.memory),
            repr(learner.optimizer),
            repr(memory.setup),
        )
    )
