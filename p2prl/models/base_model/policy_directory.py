"""A policy of a run from its folder: a model directory, or adapters beside the run's frozen model."""

from __future__ import annotations

from pathlib import Path

import torch

from p2prl.models.base_model.pretrained import LoadedModel, load_pretrained
from p2prl.models.weights.lora import ADAPTER_FOLDER, add_lora, load_adapters
from p2prl.protocol.lora_spec import LoraSpec


def load_policy(
    directory: Path, first: Path, lora: LoraSpec | None, *, device: torch.device, dtype: str
) -> LoadedModel:
    """Load a checkpoint, or the first weights when `directory` is `first`, the directory of the run's first weights.

    `ConfigError` as `load_pretrained`, `IntegrityError` for damaged adapters.
    """
    if lora is None:
        return load_pretrained(str(directory), device=device, dtype=dtype)
    loaded = load_pretrained(str(first), device=device, dtype=dtype)
    add_lora(loaded.model, lora)
    load_adapters(loaded.model, directory / ADAPTER_FOLDER)
    return loaded
