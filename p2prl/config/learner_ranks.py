"""Start the ranks of a learner that trains over several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from p2prl.config.new_run import RunFolder
from p2prl.errors import ConfigError
from p2prl.learner.training.memory_config import weight_dtype
from p2prl.learner.training.memory_plan import MemoryPlan
from p2prl.learner.training.update_engine import EngineMaker, EngineSettings
from p2prl.models.hardware.device import use_threads
from p2prl.ranks import commands
from p2prl.ranks.processes import RankProcesses, meeting_folder
from p2prl.ranks.sharded_engine import ShardedEngine, check_states


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
    threads = max(1, torch.get_num_threads() // parallel.ranks)
    use_threads(threads)
    each = f"{threads} CPU thread{'s' if threads > 1 else ''} each"
    on_notice(f"starting {parallel.ranks} ranks by plan {parallel.name} with {each}")
    ranks = RankProcesses(commands.Meeting(ranks=parallel.ranks, folder=str(meeting_folder()), threads=threads))
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
