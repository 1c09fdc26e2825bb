"""The directory of a model that a user names: one on disk, or a download from the Hugging Face hub. Needs no torch.

Only safetensors, and never code from a model repository: naming a model must not run a stranger's program.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from p2prl.errors import ConfigError

_CODE_KEYS = ("auto_map", "custom_pipelines", "quantization_config")
_CODE_SUFFIX = "_implementation"  # attention and expert kernels: transformers would fetch and run them from the hub
_PLAIN_KEYS = ("cache_implementation",)  # a kind of cache in transformers, named by the config.json of Gemma 2

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
SHARD_INDEX = "model.safetensors.index.json"

_MAX_JSON_BYTES = 32 << 20
"""Largest configuration or index that is read. An index has some hundred bytes for each tensor, of which the largest
mixtures of experts have a hundred thousand."""

_HUB_FILES = ["*.json", "*.safetensors", "*.model", "merges.txt", "vocab.txt", "chat_template.jinja", "README.md"]
_UNSAFE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf")


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
    import huggingface_hub

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
        if path.is_file() and (named := names_code(read_json_file(path))):
            raise ConfigError(
                f"{name} of {source} requires code through {named!r}",
                remedy="Use a model whose architecture is part of transformers, without quantization.",
            )
    if (directory / "adapter_config.json").is_file():
        # transformers would load the model that it names, from anywhere on this machine.
        raise ConfigError(
            f"{source} holds adapters of another model", remedy="Merge them into their model, and give the result."
        )
    shard_names(directory)
    if not any(directory.glob("*.safetensors")):
        unsafe = sorted(p.name for p in directory.iterdir() if p.suffix in _UNSAFE_SUFFIXES)
        kind = f"only {unsafe[0]}, which can hold code" if unsafe else "no weights"
        raise ConfigError(
            f"{source} holds {kind}", remedy="Convert the weights to safetensors (save_pretrained writes them)."
        )


def shard_names(directory: Path) -> list[str]:
    """Names of the files with a model's weights that its index lists; none without an index.

    `ConfigError` when the index names anything outside the directory: whatever is there would be read, and exported.
    """
    index = directory / SHARD_INDEX
    if not index.is_file():
        return []
    listed = read_json_file(index).get("weight_map")
    names = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
    if not names or any(name != Path(name).name or not name.endswith(".safetensors") for name in names):
        raise ConfigError(
            f"{SHARD_INDEX} in {directory} does not list safetensors files beside it",
            remedy="Save the model again: save_pretrained writes the index.",
        )
    return names


def read_json_file(path: Path) -> dict[str, object]:
    """The JSON object in a file of a model; `ConfigError` naming the file when it is too large or anything else."""
    with path.open("rb") as file:
        data = file.read(_MAX_JSON_BYTES + 1)
    if len(data) > _MAX_JSON_BYTES:
        raise ConfigError(
            f"{path.name} has more than {_MAX_JSON_BYTES >> 20} MB", remedy="Download the file again; it is too large."
        )
    return read_json(data, path.name)


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
