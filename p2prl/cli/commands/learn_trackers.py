"""Experiment trackers of a learner: tensorboard and trackio (extra `track`), wandb (its own), imported on request."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from p2prl.cli.views.console import say
from p2prl.config.run_folder import Folder
from p2prl.errors import ConfigError, MachineError
from p2prl.installation import install_command

_EXTRAS = {"tensorboard": "track", "trackio": "track", "wandb": "wandb"}
_TRACKERS = ("none", *_EXTRAS)

_FIGURES_ALONE = {
    "console": "off",
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""wandb also sends host, user, command line, code, packages and terminal, and prints, unless told not to."""


def check_tracker(name: str) -> None:
    """Raise `ConfigError` when there is no such tracker. Imports nothing."""
    if name not in _TRACKERS:
        raise ConfigError(f"unknown tracker {name!r}", remedy=f"Trackers: {', '.join(_TRACKERS)}.")


@contextmanager
def tracker(name: str, folder: Folder) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that records each update's metrics with the tracker of this name, without lists."""
    check_tracker(name)
    if name == "none":
        yield lambda _: None
    elif name == "tensorboard":
        writer = _import("torch.utils.tensorboard", name).SummaryWriter(str(folder.directory / "tensorboard"))
        try:
            writer.add_text("config", f"```json\n{json.dumps(hyperparameters(folder), indent=2)}\n```")
            yield lambda metrics: _add_scalars(writer, _scalars(metrics))
        finally:
            writer.close()
    elif name == "wandb":
        run = _wandb_run(folder)
        try:
            yield lambda metrics: run.log(_scalars(metrics), step=int(metrics["step"]))
        finally:
            run.finish()
    else:
        trackio = _import("trackio", name)
        # A name alone may be another run's: a learner that starts again goes on where it was.
        run_name = f"{folder.manifest.name}-{folder.run.hex()[:8]}"
        trackio.init(project="p2prl", name=run_name, config=hyperparameters(folder), resume="allow")
        try:
            yield lambda metrics: trackio.log(_scalars(metrics), step=int(metrics["step"]))
        finally:
            trackio.finish()


def hyperparameters(folder: Folder) -> dict[str, object]:
    """What the run is trained with, for a tracker: the manifest's facts and the settings of run.toml, flat.

    No settings of the network: a tracker may be public, and they have addresses, those of other peers with their ids.
    """
    facts = {"run": folder.run.hex(), **msgspec.structs.asdict(folder.manifest.sampling)}
    names = ("base_model", "parameters", "dtype", "engine_dtype", "reward", "staleness_bound", "publish_every")
    facts |= {name: getattr(folder.manifest, name) for name in names}
    facts["tasks"] = ", ".join(f"{share.task} {share.weight:g}" for share in folder.manifest.tasks)
    if folder.manifest.lora is not None:
        facts |= {"lora_rank": folder.manifest.lora.rank, "lora_alpha": folder.manifest.lora.alpha}
    settings = {name: table for name, table in folder.settings_table().items() if name != "network"}
    return facts | dict(_flat(settings))


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str | int | float | bool) else json.dumps(value)


def _wandb_run(folder: Folder) -> Any:
    """The run at wandb, which a learner that starts again continues. Nobody is asked for an account.

    Without a login, or with WANDB_MODE=offline, figures stay in the run folder.
    """
    wandb = _import("wandb", "wandb")
    mode = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "offline")
    if mode == "offline":
        say(f"wandb keeps its figures in {folder.directory / 'wandb'}; wandb sync uploads them.")
    try:
        return wandb.init(
            project="p2prl",
            id=folder.run.hex()[:32],
            name=folder.manifest.name,
            dir=str(folder.directory),
            mode=mode,
            resume="allow",
            config=hyperparameters(folder),
            settings=wandb.Settings(**_FIGURES_ALONE),
        )
    except wandb.Error as error:
        raise MachineError(
            f"wandb did not start: {error}", remedy="WANDB_MODE=offline keeps its figures in the run folder."
        ) from error


def _scalars(metrics: dict[str, object]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def _add_scalars(writer: Any, metrics: dict[str, float]) -> None:
    for name, value in metrics.items():
        writer.add_scalar(name, value, int(metrics["step"]))


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{name} is not installed", remedy=install_command(_EXTRAS[name])) from error
