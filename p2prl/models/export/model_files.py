"""Configuration and tokenizer of an exported model, from a checkpoint's files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from p2prl.models.base_model.pretrained import read_json

REQUIRED_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
"""Every checkpoint has them; one that lacks any is being deleted."""

OPTIONAL_FILES = (
    "added_tokens.json", "generation_config.json", "merges.txt", "special_tokens_map.json", "tokenizer.model",
    "vocab.json", "vocab.txt",
)  # fmt: skip

CHAT_TEMPLATE = "chat_template.jinja"

_LOCAL_KEYS = ("_name_or_path", "_from_model_config", "name_or_path")
"""Keys that hold a path of this machine, or tell transformers to derive the generation settings again."""


def read_model_files(checkpoint: Path, first: Path) -> dict[str, bytes]:
    """The checkpoint's files besides its weights. A chat template it lacks comes from the run's first weights, `first`.

    Raises `FileNotFoundError` when a required file is gone.
    """
    files = {name: (checkpoint / name).read_bytes() for name in REQUIRED_FILES}
    for name in (*OPTIONAL_FILES, CHAT_TEMPLATE):
        if (checkpoint / name).is_file():
            files[name] = (checkpoint / name).read_bytes()
    if CHAT_TEMPLATE not in files and (first / CHAT_TEMPLATE).is_file():
        files[CHAT_TEMPLATE] = (first / CHAT_TEMPLATE).read_bytes()
    return files


def exported_files(files: Mapping[str, bytes], *, dtype: str, stop_ids: Iterable[int]) -> dict[str, bytes]:
    """The files of the export: its type in config.json, the run's end tokens in generation_config.json, no paths."""
    config = _without_local(read_json(files["config.json"], "config.json"))
    config.pop("torch_dtype", None)  # the older name of the key below
    config["dtype"] = dtype
    generation = _without_local(read_json(files.get("generation_config.json", b"{}"), "generation_config.json"))
    ends = sorted(stop_ids)
    if ends:
        generation["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    tokenizer = _without_local(read_json(files["tokenizer_config.json"], "tokenizer_config.json"))
    return {
        **files,
        "config.json": _dump(config),
        "generation_config.json": _dump(generation),
        "tokenizer_config.json": _dump(tokenizer),
    }


def _without_local(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _LOCAL_KEYS}


def _dump(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
