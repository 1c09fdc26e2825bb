"""LoRA adapters (arXiv 2106.09685): two small trained matrices beside each frozen one, through the PEFT library.

A run of adapters publishes only what they change. The first adapters are the same on every machine: B is zero, and A is
drawn from its tensor's name, so a volunteer that has the base model on disk can make the run's first weights itself.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from p2prl.errors import ConfigError, IntegrityError
from p2prl.models.weights.layout import is_adapter
from p2prl.protocol.lora_spec import LoraSpec

_ALPHA = 32.0
"""alpha of new runs. Divided by the rank it scales B·A, so that one learning rate suits every rank."""

ADAPTER_FOLDER = "adapter"
"""Folder of the adapters in a model directory. PEFT loads it beside the base model."""

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_SAVED_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_LAYERS = (nn.Linear, Conv1D)
"""Kinds of layers that adapters stand beside."""

_ADAPTER = ".default"
"""PEFT's name of the one adapter, as a part of its tensors' names in the model; not in saved files."""


_BLOCK_DIMENSIONS = 3
"""Of the weights of a layer's experts together: expert, output, input."""


def plan_lora(model: nn.Module, *, rank: int) -> LoraSpec:
    """Adapters beside all linear layers of the decoder. `ConfigError` for a model without any."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    targets = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, _LAYERS) and module is not head
    }
    if not targets:
        raise ConfigError("--lora: the model has no linear layers", remedy="Train all of it: leave out --lora.")
    return LoraSpec(rank=rank, alpha=_ALPHA, targets=tuple(sorted(targets)))


def unreached_parameters(model: nn.Module) -> int:
    """Parameters of experts that the model holds in blocks, one for all of a layer: no adapter fits beside them."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == _BLOCK_DIMENSIONS)


def add_lora(model: nn.Module, spec: LoraSpec) -> None:
    """Put adapters into `model`, in its place and type; what else it has is frozen. `ValueError` if one cannot be.

    The weights of the adapters mean nothing until they are loaded, or drawn by `draw_first_adapters`.
    """
    from peft import LoraConfig, inject_adapter_in_model  # here: most runs have no adapters, and it takes a while

    layers = [module for name, module in model.named_modules() if name.rpartition(".")[2] in spec.targets]
    transposed = {isinstance(layer, Conv1D) for layer in layers}
    if len(transposed) != 1 or not all(isinstance(layer, _LAYERS) for layer in layers):
        raise ValueError("adapters fit linear layers of one kind, and at least one")
    dtype = next(model.parameters()).dtype
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,
        target_modules=list(spec.targets),
        fan_in_fan_out=transposed.pop(),
        lora_dropout=0.0,
        bias="none",
    )
    inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))
        if is_adapter(name):
            parameter.data = parameter.data.to(dtype)


@torch.no_grad()
def draw_first_adapters(model: nn.Module) -> None:
    """B zero, and A uniform in ±1/√width, as PEFT begins, but the same numbers on every machine."""
    for name, tensor in _adapters(model).items():
        if ".lora_B." in name:
            tensor.zero_()
            continue
        generator = torch.Generator().manual_seed(int.from_bytes(blake3(name.encode()).digest(7), "little"))
        bound = 1.0 / math.sqrt(tensor.shape[1])
        tensor.copy_(torch.empty(tensor.shape).uniform_(-bound, bound, generator=generator))


def lora_of(model: nn.Module) -> LoraSpec | None:
    """The adapters in a model, if any."""
    config = _config_of(model)
    if config is None:
        return None
    return LoraSpec(rank=config.r, alpha=float(config.lora_alpha), targets=tuple(sorted(config.target_modules)))


def save_adapters(model: nn.Module, directory: Path) -> None:
    """Write a model's adapters as PEFT does."""
    held = _config_of(model)
    assert held is not None, "the model has adapters"
    directory.mkdir()
    tensors = {_saved_name(name): tensor.detach().cpu().contiguous() for name, tensor in _adapters(model).items()}
    save_file(tensors, directory / WEIGHTS_FILE)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": held.r,
        "lora_alpha": held.lora_alpha,
        "target_modules": sorted(held.target_modules),
        "fan_in_fan_out": held.fan_in_fan_out,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (directory / CONFIG_FILE).write_text(_dump(config))


@torch.no_grad()
def load_adapters(model: nn.Module, directory: Path) -> None:
    """Fill a model's adapters from a folder of `save_adapters`. `IntegrityError` when they are not the model's."""
    try:
        saved = load_file(directory / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise IntegrityError(f"{directory} cannot be read: {error}", remedy="Use another checkpoint.") from error
    adapters = {_saved_name(name): tensor for name, tensor in _adapters(model).items()}
    if {name: t.shape for name, t in saved.items()} != {name: t.shape for name, t in adapters.items()}:
        raise IntegrityError(f"{directory} holds adapters of another model", remedy="Use another checkpoint.")
    for name, tensor in adapters.items():
        tensor.copy_(saved[name])


def read_adapters(directory: Path) -> tuple[dict[str, tuple[Tensor, Tensor]], bool]:
    """Adapters of a folder of `save_adapters`: by the name of the weight they are added to, A (R, I) and B (O, R).

    Also whether that weight is held transposed, (I, O). `IntegrityError` when the folder is damaged.
    """
    try:
        saved = load_file(directory / WEIGHTS_FILE)
        transposed = bool(json.loads((directory / CONFIG_FILE).read_text())["fan_in_fan_out"])
        downs = sorted(name for name in saved if name.endswith(_DOWN))
        layers = [name.removeprefix(_SAVED_PREFIX).removesuffix(_DOWN) for name in downs]
        pairs = [(saved[name], saved[name.removesuffix(_DOWN) + _UP]) for name in downs]
    except FileNotFoundError:
        raise  # it is being deleted
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise IntegrityError(f"{directory} is damaged: {error}", remedy="Use another checkpoint.") from error
    return {f"{layer}.weight": (a.float(), b.float()) for layer, (a, b) in zip(layers, pairs, strict=True)}, transposed


def adapter_files(directory: Path, *, base_model: str) -> dict[str, bytes]:
    """The files of a folder of `save_adapters` to be given away, by their path in an export."""
    config = json.loads((directory / CONFIG_FILE).read_text()) | {"base_model_name_or_path": base_model}
    return {
        f"{ADAPTER_FOLDER}/{CONFIG_FILE}": _dump(config).encode(),
        f"{ADAPTER_FOLDER}/{WEIGHTS_FILE}": (directory / WEIGHTS_FILE).read_bytes(),
    }


def _dump(config: dict[str, object]) -> str:
    return json.dumps(config, indent=2, sort_keys=True) + "\n"


def _config_of(model: nn.Module) -> Any:
    """PEFT's settings of a model's adapters; None without any."""
    return getattr(model, "peft_config", {}).get("default")


def _adapters(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if is_adapter(name)}


def _saved_name(name: str) -> str:
    return _SAVED_PREFIX + name.replace(_ADAPTER + ".", ".")
