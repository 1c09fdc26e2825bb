"""Loading of causal language models that the user names, from a directory or from the Hugging Face hub.

Its directory has been checked (`model_folder`). Files shipped by a *run* are trusted even less
(`p2prl/models/run_model.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from p2prl.errors import ConfigError
from p2prl.models.base_model.architectures import ARCHITECTURES, architecture_fault
from p2prl.models.base_model.attention import exact_attention
from p2prl.models.base_model.model_folder import model_directory, read_json_file
from p2prl.models.hardware.device_choice import best_device
from p2prl.models.hardware.failures import is_out_of_memory
from p2prl.models.weights.layout import TORCH_DTYPES

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_FIELD = re.compile(r"`(\w+)`")
"""A field's name in transformers' messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """A causal LM in evaluation mode and its fast tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


def default_dtype(device: torch.device) -> str:
    """bfloat16 on CUDA; float32 elsewhere, where 16-bit types are emulated and slower."""
    return "bfloat16" if device.type == "cuda" else "float32"


def quiet_transformers() -> None:
    """Keep transformers' notices and progress bars off the terminal. Errors are raised, so they are still seen."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def load_pretrained(source: str, *, device: torch.device | None = None, dtype: str | None = None) -> LoadedModel:
    """Load a causal LM and its tokenizer.

    `source` is a directory, which is read without using the network, or a hub id (`owner/name`), which is downloaded
    once. `device` and `dtype` (a key of `TORCH_DTYPES`) default to the best available. `ConfigError` when there is no
    such model, or when it needs pickled weights or a stranger's code.
    """
    device = device or best_device()
    dtype = dtype or default_dtype(device)
    if dtype not in TORCH_DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}", remedy=f"Choose one of {', '.join(TORCH_DTYPES)}.")
    quiet_transformers()
    directory = model_directory(source)
    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        raise ConfigError(
            f"{source} has no tokenizer", remedy="Save one there with a tokenizer.json (save_pretrained writes it)."
        )
    options = {"local_files_only": True, "trust_remote_code": False}
    with library_errors(f"config.json of {source} cannot be used", "Correct it, or download the model again."):
        config = transformers.AutoConfig.from_pretrained(directory, **options)
    if (directory / "generation_config.json").is_file():
        with library_errors(
            f"generation_config.json of {source} cannot be used",
            "Correct it in a copy of the model's directory, and give that.",
        ):
            transformers.GenerationConfig.from_pretrained(directory, local_files_only=True)
    with library_errors(
        f"{source} cannot be loaded as a causal language model",
        "Use a transformers causal LM with safetensors weights, saved with its own config.json.",
    ):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=TORCH_DTYPES[dtype],
            use_safetensors=True,
            attn_implementation=exact_attention(config),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **options,
        )
    with library_errors(
        f"the tokenizer of {source} cannot be loaded",
        "Save it there again: save_pretrained of a fast tokenizer writes tokenizer.json.",
    ):
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, use_fast=True, **options)
    check_weights(report, source)
    if not tokenizer.is_fast:
        raise ConfigError(f"{source} has no fast tokenizer", remedy="Save it with a tokenizer.json.")
    return LoadedModel(model=model.to(device).eval(), tokenizer=tokenizer)


@contextmanager
def library_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn what transformers, tokenizers and safetensors raise over a user's files into a `ConfigError`."""
    try:
        yield
    except Exception as error:  # they raise whatever they like, tokenizers a bare Exception
        if is_out_of_memory(error):
            raise
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise ConfigError(f"{what}: {said}", remedy=remedy) from error


def check_weights(report: Mapping[str, Any], source: str) -> None:
    """`ConfigError` unless the weights are all there, in the shapes of config.json.

    transformers silently fills missing weights with random ones; a policy must not be partly noise.
    """
    if lacking := sorted(map(str, report["missing_keys"])):
        raise ConfigError(
            f"the weights of {source} lack {', '.join(lacking[:3])} ({len(lacking)} in all)",
            remedy="Use weights saved for this architecture.",
        )
    if other := sorted(str(entry[0]) for entry in report["mismatched_keys"]):
        raise ConfigError(
            f"weights of {source} have other shapes than its config.json says: {', '.join(other[:3])} ({len(other)} in"
            " all)",
            remedy="Use the config.json that was saved with the weights.",
        )


def check_architecture(directory: Path, source: str) -> None:
    """`ConfigError` with the reason where no run can use a model's architecture. Before its weights are loaded."""
    if fault := architecture_fault(read_json_file(directory / "config.json").get("model_type")):
        raise ConfigError(
            f"the architecture of {source} is not supported: {fault}",
            remedy=f"Tested are {', '.join(ARCHITECTURES)}; docs/researchers.md names models of each.",
        )


def check_saveable(loaded: LoadedModel, source: str) -> None:
    """`ConfigError` naming the field of a generation_config.json that transformers loads and refuses to save."""
    try:
        if loaded.model.generation_config is not None:
            loaded.model.generation_config.validate(strict=True)
    except (ValueError, TypeError) as error:
        named = _FIELD.search(str(error))
        field = named[1] if named else "a field"
        said = " ".join(str(error).partition("- ")[2].split() or str(error).split())
        raise ConfigError(
            f"{field} in generation_config.json of {source} is one that transformers refuses to save: {said[:200]}",
            remedy=f"Correct or remove {field} there, in a copy of the model's directory, and give that with --model.",
        ) from error
