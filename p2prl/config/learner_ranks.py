"""Start the ranks of a learner that trains over several processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from p2prl.config.host_launch import HostLaunch
from p2prl.config.new_run import RunFolder
from p2prl.errors import ConfigError
from p2prl.learner.training.memory_config import weight_dtype
from p2prl.learner.training.memory_plan import MemoryPlan
from p2prl.learner.training.update_engine import EngineMaker, EngineSettings
from p2prl.models.hardware.device_choice import use_threads
from p2prl.plain_text import counted
from p2prl.ranks import commands
from p2prl.ranks.processes import RankProcesses, meeting_folder
from p2prl.ranks.sharded_engine import OtherRanks, ShardedEngine, check_states
from p2prl.ranks.torchrun_hosts import HostRanks, follow_host


def start_ranks(
    folder: RunFolder, memory: MemoryPlan, device: torch.device, on_notice: Callable[[str], None]
) -> tuple[EngineMaker, int]:
    """Start the run's other ranks: what makes this one's engine of its model, and its CPU threads.

    `ConfigError` for settings that ranks cannot train by.
    """
    parallel = folder.settings.learner.parallel
    check_states(memory.states)
    if device.type != "cpu":
        raise ConfigError(
            f"{parallel.ranks} ranks train on the CPU, and this learner's device is {device}",
            remedy='Set device = "cpu" in run.toml, or leave out --ranks.',
        )
    launch = HostLaunch.of(os.environ)
    threads = threads_of_rank(parallel.ranks if launch is None else launch.ranks_here)
    each = f"{counted(threads, 'CPU thread')} each"
    ranks: OtherRanks
    if launch is None:
        on_notice(f"starting {parallel.ranks} ranks by plan {parallel.name} with {each}")
        ranks = RankProcesses(commands.Meeting(ranks=parallel.ranks, folder=str(meeting_folder()), threads=threads))
    else:
        on_notice(
            f"waiting for {parallel.ranks} ranks on {counted(launch.hosts, 'host')} by plan {parallel.name} with {each}"
        )
        ranks = HostRanks(parallel.ranks)
    first = folder.directory / "model"

    def engine(model: Any, settings: EngineSettings) -> ShardedEngine:
        load = commands.Load(
            weights=str(folder.newest_weights()),
            first=str(first),
            lora=folder.manifest.lora,
            dtype=weight_dtype(memory.precision),
            attention=folder.settings.learner.memory.attention,
            parallel=parallel,
            settings=settings,
        )
        return ShardedEngine(model, ranks, load)

    return engine, threads


def follow_learner(launch: HostLaunch) -> int:
    """Be another rank than 0 of a learner over several hosts, until it ends; returns an exit code."""
    threads_of_rank(launch.ranks_here)
    return follow_host(rank=launch.rank, ranks=launch.ranks)


def threads_of_rank(ranks_here: int) -> int:
    """Limit this process to its share of the machine's threads."""
    threads = max(1, torch.get_num_threads() // ranks_here)
    use_threads(threads)
    return threads
