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

_OPTIMIZER_FILE = "optimizer.safetensors"
_REFERENCE_FILE = "reference.safetensors"
_VALUE_FILE = "value.safetensors"
_STATE_FILE = "trainer.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerState:
    """A trainer's state besides the weights."""

    step: int
    """Updates done."""
    loss: Mapping[str, Any]
    """State of the loss pipeline."""
    amsgrad: Mapping[str, Any] = field(default_factory=dict)
    """State of the global AMSGrad; empty without one."""
    optimizer: Mapping[str, Tensor]
    reference: Mapping[str, Tensor] | None
    """Weights of the reference policy; None without one."""
    value: Mapping[str, Tensor] | None = None
    """The value head with its optimizer's state; None without one."""


def save_checkpoint(directory: Path, model: Any, tokenizer: Any, state: TrainerState) -> None:
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
        save_file(dict(state.optimizer), new / _OPTIMIZER_FILE)
        if state.reference is not None:
            save_file(dict(state.reference), new / _REFERENCE_FILE)
        if state.value is not None:
            save_file(dict(state.value), new / _VALUE_FILE)
        numbers = {"step": state.step, "estimator": state.loss, "amsgrad": state.amsgrad}
        (new / _STATE_FILE).write_text(json.dumps(numbers))
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


def load_checkpoint(directory: Path) -> TrainerState:
    """Read a checkpoint except its weights, which the model is loaded with."""
    state = json.loads((directory / _STATE_FILE).read_text())
    reference, value = directory / _REFERENCE_FILE, directory / _VALUE_FILE
    return TrainerState(
        step=int(state["step"]),
        loss=state.get("estimator", {}),
        amsgrad=state.get("amsgrad", {}),
        optimizer=load_file(directory / _OPTIMIZER_FILE),
        reference=load_file(reference) if reference.exists() else None,
        value=load_file(value) if value.exists() else None,
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
