"""The reward model of a run folder: copied by `init`, loaded by the learner under the digest in the manifest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from p2prl.config.run_folder import Folder
from p2prl.errors import ConfigError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.rewards.reward_model import RewardModel, stored_weights
from p2prl.models.rewards.reward_model_folder import reward_model_digest, reward_model_files
from p2prl.models.rewards.run_reward import RunReward
from p2prl.protocol.reward_text import reward_model_of

REWARD_MODEL_FOLDER = "reward_model"
"""Folder of a run with a reward model, never shipped."""


def try_reward(plan: RunPlan, on_progress: Callable[[str, float], None]) -> None:
    """`ConfigError` for a reward that a planned run cannot have, and for a reward model that cannot be used."""
    names, rows = [share.task for share in plan.shares], [data.task for data in plan.data]
    RunReward(plan.reward, names, data_tasks=rows, environments=plan.brought)
    if plan.reward_model is not None:
        on_progress("trying the reward model", 0.0)
        RewardModel(plan.reward_model, torch.device("cpu"))


def copy_reward_model(source: Path, new: Path, on_progress: Callable[[str, float], None]) -> str:
    """Copy the files of a checked reward model into a new run folder; a sentence about it."""
    names = reward_model_files(source)
    (new / REWARD_MODEL_FOLDER).mkdir()
    for number, name in enumerate(names):
        on_progress("copying the reward model", number / len(names))
        shutil.copyfile(source / name, new / REWARD_MODEL_FOLDER / name)
    parameters, _ = stored_weights(source)
    return (
        f"The reward model of {parameters:,} parameters stays with the learner: validators check tokens, and nobody "
        "else can recompute a reward."
    )


def reward_model_bytes(folder: Folder) -> int:
    """Bytes of the weights of a run's reward model; 0 without one."""
    if not reward_model_of(folder.manifest.reward):
        return 0
    parameters, dtype = stored_weights(_place(folder))
    return parameters * dtype.itemsize


def open_reward_model(folder: Folder, device: torch.device, on_notice: Callable[[str], None]) -> RewardModel | None:
    """The run's reward model on a device; None without one. `ConfigError` for another than the manifest names."""
    named = reward_model_of(folder.manifest.reward)
    if not named:
        return None
    place = _place(folder)
    found = reward_model_digest(place)
    if found != named:
        raise ConfigError(
            f"the reward model in {place} was changed: its digest begins with {found}, and the run's manifest names "
            f"{named}",
            remedy="Put back its files as p2prl init copied them. Another reward model is another run: p2prl init "
            "--reward-model FOLDER.",
        )
    model = RewardModel(place, device)
    text = {"orm": "whole completions", "prm": "the ends of steps"}[model.kind]
    on_notice(f"reward model of {model.parameters:,} parameters on {device}: scores {text} ({model.kind})")
    return model


def _place(folder: Folder) -> Path:
    """Its folder. `ConfigError` when it is gone."""
    place = folder.directory / REWARD_MODEL_FOLDER
    if not (place / "config.json").is_file():
        raise ConfigError(
            f"the run's reward model is missing: {place}",
            remedy="Put back the folder that p2prl init made; without it the learner cannot compute rewards.",
        )
    return place
