"""Export of a model's configuration and tokenizer as the files of a run.

They contain no templates, no code and nothing local. Peers treat them as untrusted: `p2prl/models/run_model.py`.
"""

from __future__ import annotations

import json

from tokenizers import Tokenizer

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.run_files.checks import LABEL_KEYS, check_config, json_file
from p2prl.models.tokenizer.checks import check_tokenizer
from p2prl.models.tokenizer.control_text import SPECIAL_TOKENS

_LOCAL_KEYS = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
"""Keys of config.json that depend on the machine it was written on."""

_LEFT_OUT = (*_LOCAL_KEYS, *LABEL_KEYS)


def export_run_files(loaded: LoadedModel) -> dict[str, bytes]:
    """The files other peers need to rebuild a model's architecture and tokenizer.

    `ConfigError` when no run could use the model.
    """
    config: dict[str, object] = json.loads(loaded.model.config.to_json_string())
    tokens = {name: getattr(loaded.tokenizer, name) for name in SPECIAL_TOKENS}
    ends = getattr(loaded.model.generation_config, "eos_token_id", None)
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    backend = Tokenizer.from_str(loaded.tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    # These bytes identify a run, so the same model must give the same ones: nothing local, all keys sorted.
    files = {
        "config.json": _dump({key: value for key, value in config.items() if key not in _LEFT_OUT}),
        "generation_config.json": _dump({"eos_token_id": sorted(ends)}),
        "tokenizer.json": backend.to_str().encode(),
        "tokenizer_config.json": _dump({k: str(v) for k, v in tokens.items() if v is not None}),
    }
    try:
        check_config(json_file(files, "config.json"))
        check_tokenizer(json_file(files, "tokenizer.json"))
    except RemoteProtocolError as error:
        raise ConfigError(f"a run cannot use this model: {error}", remedy="Choose another base model.") from error
    return files


def _dump(value: dict[str, object]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()
