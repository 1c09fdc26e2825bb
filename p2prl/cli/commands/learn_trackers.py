"""Experiment trackers of a learner: tensorboard and trackio (extra `track`), imported on request."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from p2prl.config.run_folder import Folder
from p2prl.errors import ConfigError

_TRACKERS = ("none", "tensorboard", "trackio")
INSTALL = "Install it in the folder of your clone: pip install -c constraints.txt '.[track]'"


def check_tracker(name: str) -> None:
    """Raise `ConfigError` when there is no such tracker. Imports nothing."""
    if name not in _TRACKERS:
        raise ConfigError(f"unknown tracker {name!r}", remedy=f"Trackers: {', '.join(_TRACKERS)}.")


@contextmanager
def tracker(name: str, folder: Folder) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that records each update's metrics with `none`, `tensorboard` or `trackio`, without lists."""
    check_tracker(name)
    if name == "none":
        yield lambda _: None
    elif name == "tensorboard":
        writer = _import("torch.utils.tensorboard", name).SummaryWriter(str(folder.directory / "tensorboard"))
        try:
            yield lambda metrics: _add_scalars(writer, _scalars(metrics))
        finally:
            writer.close()
    else:
        trackio = _import("trackio", name)
        trackio.init(project="p2prl", name=folder.manifest.name)
        try:
            yield lambda metrics: trackio.log(_scalars(metrics))
        finally:
            trackio.finish()


def _scalars(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def _add_scalars(writer: Any, metrics: dict[str, float]) -> None:
    for name, value in metrics.items():
        writer.add_scalar(name, value, int(metrics["step"]))


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{name} is not installed", remedy=INSTALL) from error
