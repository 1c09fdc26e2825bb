"""Checkpoints of a trainer: a Hugging Face model directory, or adapters alone, with the optimizer's state. Atomic."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from p2prl.disk_full import write_error
from p2prl.models.weights.lora import ADAPTER_FOLDER, lora_of, save_adapters

OPTIMIZER_FILE = "optimizer.safetensors"
REFERENCE_FILE = "reference.safetensors"
_VALUE_FILE = "value.safetensors"
_STATE_FILE = "trainer.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerNumbers:
    """A trainer's state in a few numbers."""

    step: int
    """Updates done."""
    loss: Mapping[str, Any]
    """State of the loss pipeline."""
    amsgrad: Mapping[str, Any] = field(default_factory=dict)
    """State of the global AMSGrad; empty without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerTensors:
    """A trainer's state besides numbers and weights."""

    optimizer: Mapping[str, Tensor]
    reference: Mapping[str, Tensor] | None
    """Weights of the reference policy; None without one."""
    value: Mapping[str, Tensor] | None = None
    """The value head with its optimizer's state; None without one."""


def save_checkpoint(
    directory: Path, model: Any, tokenizer: Any, numbers: TrainerNumbers, tensors: TrainerTensors
) -> None:
    """Write a checkpoint; the directory appears complete or not at all."""
    new = directory.with_name(directory.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        if lora_of(model) is None:
            model.save_pretrained(new, safe_serialization=True)
        else:
            # The frozen weights are in the run folder already.
            new.mkdir(parents=True)
            model.config.save_pretrained(new)
            model.generation_config.save_pretrained(new)
            save_adapters(model, new / ADAPTER_FOLDER)
        tokenizer.save_pretrained(new)
        save_file(dict(tensors.optimizer), new / OPTIMIZER_FILE)
        if tensors.reference is not None:
            save_file(dict(tensors.reference), new / REFERENCE_FILE)
        if tensors.value is not None:
            save_file(dict(tensors.value), new / _VALUE_FILE)
        document = {"step": numbers.step, "estimator": numbers.loss, "amsgrad": numbers.amsgrad}
        (new / _STATE_FILE).write_text(json.dumps(document))
        for path in new.rglob("*"):
            _sync(path)
        shutil.rmtree(directory, ignore_errors=True)
        new.rename(directory)
        _sync(directory.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(new, ignore_errors=True)  # an unfinished checkpoint occupies space the journal needs
        raise write_error(
            error, f"the checkpoint {directory}", kept="training resumes from the last checkpoint and the journal"
        ) from error


def load_numbers(directory: Path) -> TrainerNumbers:
    """Read a checkpoint's numbers."""
    state = json.loads((directory / _STATE_FILE).read_text())
    return TrainerNumbers(step=int(state["step"]), loss=state.get("estimator", {}), amsgrad=state.get("amsgrad", {}))


def load_tensors(directory: Path) -> TrainerTensors:
    """Read a checkpoint's tensors except its weights, which the model is loaded with."""
    reference = directory / REFERENCE_FILE
    return TrainerTensors(
        optimizer=load_file(directory / OPTIMIZER_FILE),
        reference=load_file(reference) if reference.exists() else None,
        value=load_value(directory),
    )


def load_value(directory: Path) -> dict[str, Tensor] | None:
    """Read a checkpoint's value head; None without one."""
    value = directory / _VALUE_FILE
    return load_file(value) if value.exists() else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
