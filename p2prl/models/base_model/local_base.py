"""Weights from folders on disk: a base model as the first weights of a run, and a policy of a run.

A machine that has the model a run started from does not need to download its full weights. The digest of the weights
decides, not the model's name. Reading needs the memory of one model; its directory is not changed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch
from blake3 import blake3
from torch import nn

from p2prl.disk_full import write_error
from p2prl.errors import ConfigError
from p2prl.models.base_model.pretrained import LoadedModel, load_pretrained
from p2prl.models.weights.layout import layout_of, weight_blocks
from p2prl.models.weights.lora import ADAPTER_FOLDER, add_lora, draw_first_adapters, load_adapters
from p2prl.protocol.digests import Digest
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.protocol.manifests import RunManifest


def load_policy(
    directory: Path, first: Path, manifest: RunManifest, *, device: torch.device, dtype: str
) -> LoadedModel:
    """Load a checkpoint, or the first weights when `directory` is `first`, the directory of the run's first weights.

    `ConfigError` as `load_pretrained`, `IntegrityError` for damaged adapters.
    """
    if manifest.lora is None:
        return load_pretrained(str(directory), device=device, dtype=dtype)
    loaded = load_pretrained(str(first), device=device, dtype=dtype)
    add_lora(loaded.model, manifest.lora)
    load_adapters(loaded.model, directory / ADAPTER_FOLDER)
    return loaded


def flatten_local_base(model: Path, manifest: RunManifest, blobs: Path) -> Digest:
    """Write the weights of a model directory, as the run lays them out, into `blobs` under their digest; return it.

    `ConfigError` when the model cannot be loaded or is not of the run's architecture, `MachineError` when the disk
    fails.
    """
    loaded = load_pretrained(str(model), device=torch.device("cpu"), dtype=manifest.dtype)
    if manifest.lora is not None:
        _add_adapters(loaded.model, manifest.lora, model)
    layout = layout_of(loaded.model, manifest.dtype)
    if layout.digest != manifest.layout:
        if layout.parameters != manifest.parameters:
            differs = f"has {layout.parameters:,} parameters, and this run's model {manifest.parameters:,}"
        else:
            differs = "does not have the tensor names and shapes of this run's model"
        raise ConfigError(f"{model} {differs}", remedy=f"This run started from {manifest.base_model}.")
    part = blobs / "base.new"
    digest = blake3()
    try:
        blobs.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            for block in weight_blocks(loaded.model, layout):
                data = block.view("u1").data
                digest.update(data)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.rename(blobs / digest.hexdigest())
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise write_error(error, f"{layout.size_bytes:,} bytes in {blobs}") from error
    return Digest(digest.digest())


def _add_adapters(loaded: nn.Module, lora: LoraSpec, model: Path) -> None:
    """Put the run's first adapters into the base. `ConfigError` when it has no such layers."""
    try:
        add_lora(loaded, lora)
    except ValueError as error:
        raise ConfigError(f"{model} does not have the layers of this run's adapters: {error}") from error
    draw_first_adapters(loaded)
