"""Memory of a run's learner: what it will need and what there is, told before anything large is loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from safetensors import safe_open

from p2prl.config.host_launch import HostLaunch
from p2prl.config.learner_replayers import replayer_devices
from p2prl.config.new_run import RunFolder, run_file_blobs
from p2prl.config.prompt_lengths import survey_prompts
from p2prl.config.reward_model_files import reward_model_bytes
from p2prl.config.run_data import folder_data, seeded_tasks
from p2prl.learner.training.memory_config import MemoryConfig
from p2prl.learner.training.memory_model import ModelShape, TrainingSetup, shape_of
from p2prl.learner.training.memory_plan import MemoryPlan, plan_memory
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.models.hardware.device_choice import free_memory
from p2prl.models.run_files.checks import read_tokenizer
from p2prl.models.weights.lora import ADAPTER_FOLDER, WEIGHTS_FILE
from p2prl.protocol.manifests import DTYPE_BYTES

_REPLAYER_BYTES = 500_000_000
"""Of a replayer's process with torch in it, besides weights and a batch: 480 MB were measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerMemory:
    """What the memory of a run's learner depends on."""

    shape: ModelShape
    setup: TrainingSetup
    longest_row: int
    """Tokens of the longest completion with its prompt."""
    free_bytes: int
    """On the device, for all ranks of this host together."""

    def plan(self, config: MemoryConfig, parallel: ParallelConfig, *, ranks_here: int) -> MemoryPlan:
        """The memory plan of each rank. `MachineError` when a rank cannot have even one row."""
        return plan_memory(
            self.shape,
            replace(self.setup, parallel=parallel),
            config,
            free_bytes=self.free_bytes // ranks_here,
            longest_row=self.longest_row,
        )


def plan_learner_memory(folder: RunFolder, device: torch.device, on_notice: Callable[[str], None]) -> MemoryPlan:
    """The memory plan of a run on this device, told to `on_notice`. `MachineError` when the run cannot fit."""
    found, parallel, here, where = learner_memory(folder, device), folder.settings.learner.parallel, 1, str(device)
    if parallel.ranks > 1:
        launch = HostLaunch.of(os.environ)
        here = parallel.ranks if launch is None else launch.ranks_here
        where += f" for each of {parallel.ranks} ranks"
    plan = found.plan(folder.settings.learner.memory, parallel, ranks_here=here)
    on_notice(plan.text(found.free_bytes // here, where))
    return plan


def learner_memory(folder: RunFolder, device: torch.device) -> LearnerMemory:
    """What the memory of a run's learner depends on, on this device."""
    manifest, config = folder.manifest, folder.settings.learner.memory
    model = transformers.AutoConfig.from_pretrained(
        folder.directory / "model", local_files_only=True, trust_remote_code=False
    )
    text = model.get_text_config()
    setup = TrainingSetup(
        precision=config.precision_on(device.type, manifest.engine_dtype),
        states=config.optimizer_states,
        reference=folder.settings.loss.reference_config() is not None,
        value_head=folder.settings.loss.has_value_head,
        replay_bytes=DTYPE_BYTES[manifest.engine_dtype],
        published_bytes=DTYPE_BYTES[manifest.dtype] if device.type != "cuda" else 0,
        device_type=device.type,
        reward_model_bytes=reward_model_bytes(folder),
    )
    tokenizer = read_tokenizer({file.name: data for file, data in run_file_blobs(folder)}, text.vocab_size)
    longest = _longest_prompt(folder, tokenizer) + manifest.sampling.max_new_tokens
    return LearnerMemory(
        shape=shape_of(model, manifest.parameters, adapters=_adapter_parameters(folder)),
        setup=setup,
        longest_row=min(longest, getattr(text, "max_position_embeddings", None) or longest),
        free_bytes=max(0, free_memory(device) - _replayers_bytes(folder, device)),
    )


def _replayers_bytes(folder: RunFolder, device: torch.device) -> int:
    """Memory that the replayers on the learner's device will take. A map of weights in a file takes none."""
    count = folder.settings.learner.replayers
    own = f"cuda:{device.index or 0}" if device.type == "cuda" else str(device)
    here = replayer_devices(device, count, cards=torch.cuda.device_count()).count(own)
    weights = folder.manifest.parameters * DTYPE_BYTES[folder.manifest.engine_dtype]
    return here * (weights + _REPLAYER_BYTES)


def _adapter_parameters(folder: RunFolder) -> int:
    """Parameters of the run's adapters; 0 where all are trained."""
    if folder.manifest.lora is None:
        return 0
    with safe_open(folder.directory / "model" / ADAPTER_FOLDER / WEIGHTS_FILE, framework="pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - not a dict


def _longest_prompt(folder: RunFolder, tokenizer: Any) -> int:
    """Tokens of the longest prompt: measured for procedural tasks, known for rows of data."""
    manifest = folder.manifest
    held = folder_data(folder)
    procedural = seeded_tasks(manifest, held.environments)
    longest = [data.training.prompts.longest for data in held.tasks.values()]
    if procedural:
        before, after = manifest.prompt_frame
        lengths = survey_prompts(
            procedural,
            lambda texts: tokenizer(
                [before + text + after for text in texts], add_special_tokens=not (before or after)
            )["input_ids"],
        )
        longest.append(lengths.expected)
    return max(longest)
