"""Loading of causal language models that the user names, from a directory or from the Hugging Face hub.

Only safetensors, and never code from a model repository: naming a model must not run a stranger's program. Files
shipped by a *run* are trusted even less (`p2prl/models/run_model.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import msgspec
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from p2prl.errors import ConfigError
from p2prl.models.base_model.attention import ARCHITECTURES, exact_attention
from p2prl.models.hardware.device import best_device
from p2prl.models.hardware.failures import is_out_of_memory
from p2prl.models.weights.layout import TORCH_DTYPES

_CODE_KEYS = ("auto_map", "custom_pipelines", "quantization_config")
_CODE_SUFFIX = "_implementation"  # attention and expert kernels: transformers would fetch and run them from the hub
_PLAIN_KEYS = ("cache_implementation",)  # a kind of cache in transformers, named by the config.json of Gemma 2

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "merges.txt", "vocab.txt", "chat_template.jinja", "README.md"]
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_FIELD = re.compile(r"`(\w+)`")
"""A field's name in transformers' messages."""

_UNSAFE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf")


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
    with _library_errors(f"config.json of {source} cannot be used", "Correct it, or download the model again."):
        config = transformers.AutoConfig.from_pretrained(directory, **options)
    if (directory / "generation_config.json").is_file():
        with _library_errors(
            f"generation_config.json of {source} cannot be used",
            "Correct it in a copy of the model's directory, and give that.",
        ):
            transformers.GenerationConfig.from_pretrained(directory, local_files_only=True)
    with _library_errors(
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
    with _library_errors(
        f"the tokenizer of {source} cannot be loaded",
        "Save it there again: save_pretrained of a fast tokenizer writes tokenizer.json.",
    ):
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, use_fast=True, **options)
    _check_weights(report, source)
    if not tokenizer.is_fast:
        raise ConfigError(f"{source} has no fast tokenizer", remedy="Save it with a tokenizer.json.")
    return LoadedModel(model=model.to(device).eval(), tokenizer=tokenizer)


@contextmanager
def _library_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn what transformers, tokenizers and safetensors raise over a user's files into a `ConfigError`."""
    try:
        yield
    except Exception as error:  # they raise whatever they like, tokenizers a bare Exception
        if is_out_of_memory(error):
            raise
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise ConfigError(f"{what}: {said}", remedy=remedy) from error


def _check_weights(report: Mapping[str, Any], source: str) -> None:
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
    """`ConfigError` with the supported architectures unless a model's is one. Before its weights are loaded."""
    kind = read_json((directory / "config.json").read_bytes(), "config.json").get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ConfigError(
            f"the architecture of {source}, {str(kind)[:64]!r}, is not supported",
            remedy=f"A run may use {', '.join(ARCHITECTURES)}; docs/researchers.md names models of each.",
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


def model_directory(source: str) -> Path:
    """The checked directory of a source, downloaded when it is a hub id. `ConfigError` as in `load_pretrained`."""
    directory = _directory(source)
    _check_directory(directory, source)
    return directory


def _directory(source: str) -> Path:
    """The directory of a source: the one named, or a download from the hub."""
    path = Path(source).expanduser()
    if source and path.is_dir():
        return path
    if path.is_file():
        raise ConfigError(
            f"{source} is a file, not a directory",
            remedy="Use the directory of a transformers model, with config.json and safetensors.",
        )
    if not source or path.exists() or not _HUB_ID.fullmatch(source):
        raise ConfigError(f"there is no directory {source}", remedy="Use a model directory or a hub id, owner/name.")
    try:
        return Path(huggingface_hub.snapshot_download(source, allow_patterns=_HUB_FILES))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{source} is neither a directory here nor a model on the hub: {error}",
            remedy="Check the name and the connection, or download the model and use its directory.",
        ) from error


def _check_directory(directory: Path, source: str) -> None:
    """Refuse code and pickles before transformers reads anything."""
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{source} has no config.json", remedy="Use the directory of a transformers model.")
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        path = directory / name
        if path.is_file() and (named := names_code(read_json(path.read_bytes(), name))):
            raise ConfigError(
                f"{name} of {source} requires code through {named!r}",
                remedy="Use a model whose architecture is part of transformers, without quantization.",
            )
    if not any(directory.glob("*.safetensors")):
        unsafe = sorted(p.name for p in directory.iterdir() if p.suffix in _UNSAFE_SUFFIXES)
        kind = f"only {unsafe[0]}, which can hold code" if unsafe else "no weights"
        raise ConfigError(
            f"{source} holds {kind}", remedy="Convert the weights to safetensors (save_pretrained writes them)."
        )


def read_json(data: bytes, name: str) -> dict[str, object]:
    """A JSON object; `ConfigError` naming the file when it is anything else."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} is not a JSON object: {error}", remedy="Download the file again.") from error


def names_code(config: object) -> str:
    """The first key, at any depth, through which a configuration would run code; empty when there is none."""
    pending = [config]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                if inner is None or key in _PLAIN_KEYS:
                    continue
                if key in _CODE_KEYS or key.endswith(_CODE_SUFFIX):
                    return str(key)
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return ""
