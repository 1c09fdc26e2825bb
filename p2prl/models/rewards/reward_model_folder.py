"""The folder of a reward model: its files, its kind and its digest. Needs no torch.

Only these files are read, by us and by transformers, and all of them are under the digest: nothing else in a folder can
change a score.
"""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from p2prl.errors import ConfigError
from p2prl.models.base_model.model_folder import SHARD_INDEX, model_directory, read_json_file, shard_names

_CONFIG, _TOKENIZER = "config.json", "tokenizer.json"
_OTHER_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_ONE_FILE = "model.safetensors"

_KINDS = {"ForSequenceClassification": "orm", "ForTokenClassification": "prm"}

_DIGEST_CHARS = 32
"""Hex digits of a digest in a run's manifest, whose texts are short: 128 bits."""


def reward_model_directory(source: str) -> Path:
    """The checked directory of a source, downloaded when it is a hub id.

    `ConfigError` for pickled weights, for code, and for a folder without weights, configuration or tokenizer.
    """
    directory = model_directory(source)
    if not (directory / _TOKENIZER).is_file():
        raise ConfigError(
            f"the reward model {source} has no {_TOKENIZER}",
            remedy="Save its fast tokenizer there: save_pretrained writes the file.",
        )
    for name in weight_files(directory):
        if not (directory / name).is_file():
            raise ConfigError(f"the reward model {source} has no {name}", remedy="Download or save it again, whole.")
    reward_model_kind(directory)
    return directory


def reward_model_kind(directory: Path) -> str:
    """The part of a reward that a model gives: `orm` scores a whole completion, `prm` the end of each of its steps."""
    named = read_json_file(directory / _CONFIG).get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else "nothing"
    for ending, kind in _KINDS.items():
        if architecture.endswith(ending):
            return kind
    raise ConfigError(
        f"config.json of the reward model {directory} names the architecture {architecture[:60]}",
        remedy="Give a model for sequence classification (ORM) or token classification (PRM) with one label.",
    )


def weight_files(directory: Path) -> list[str]:
    """Names of the files with a reward model's weights."""
    return shard_names(directory) or [_ONE_FILE]


def reward_model_files(directory: Path) -> list[str]:
    """Names of all files that make a reward model, in order."""
    optional = [name for name in (*_OTHER_FILES, SHARD_INDEX) if (directory / name).is_file()]
    return sorted([_CONFIG, _TOKENIZER, *optional, *weight_files(directory)])


def reward_model_digest(directory: Path) -> str:
    """Beginning of the digest over names, sizes and bytes of all files, hex. `ConfigError` when one cannot be read."""
    whole = blake3(derive_key_context="p2prl/reward-model/v1")
    try:
        for name in reward_model_files(directory):
            of_file = blake3(max_threads=blake3.AUTO)
            of_file.update_mmap(directory / name)
            head = f"{name}\n{(directory / name).stat().st_size}\n"
            whole.update(head.encode() + of_file.digest())
    except OSError as error:
        raise ConfigError(
            f"a file of the reward model cannot be read: {error}", remedy="Give the folder whole, and readable."
        ) from error
    return whole.hexdigest()[:_DIGEST_CHARS]
