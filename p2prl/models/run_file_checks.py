"""Checks of the configuration and tokenizer that a run ships, before anything is built from them.

The files are data signed by a stranger. Their architecture must be on the list here, and they must not refer to code,
kernels or templates. Every fault is the learner's: `RemoteProtocolError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.models.pretrained import names_code, read_json

ARCHITECTURES = frozenset(
    {
        "gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt2", "gpt_neox", "granite", "llama", "mistral", "olmo",
        "olmo2", "olmo3", "opt", "phi", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2",
    }
)  # fmt: skip
"""Model types a run may use: decoders whose code is part of transformers and whose logits depend on nothing but the
tokens before."""

ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary scalings a run may use. `dynamic` and `longrope` change with the longest row of a batch: two peers who batch
differently would not agree on a token."""

MAX_LAYERS = 256
"""Decoder layers of a run's model; each costs Python objects even on the meta device."""

MAX_ADDED_TOKENS = 4
"""Special tokens a tokenizer may put around a text; real ones add a beginning, an end, or both."""

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""The special tokens a run's tokenizer may name."""

_FIXED_SETTINGS = {
    "is_causal": True,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "return_dict": True,
    "output_attentions": False,
    "output_hidden_states": False,
}
"""Settings that would make a decoder attend ahead or return other outputs; a run must keep the default values."""

_MAX_INTEGER = 1 << 31
"""Far above any real setting; a larger integer would overflow or stall its reader."""
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def json_file(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """One of the run's JSON files, decoded."""
    if name not in files:
        raise RemoteProtocolError(f"run files: {name} is missing")
    try:
        return read_json(files[name], name)
    except ConfigError as error:
        raise RemoteProtocolError(f"run files: {error}") from error


def check_config(config: dict[str, Any]) -> None:
    """Reject a config.json that could run code, stall, or make logits depend on the batch."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise RemoteProtocolError(f"run files: architecture {str(kind)[:64]!r} is not supported")
    if named := names_code(config):
        raise RemoteProtocolError(f"run files: config.json requires code through {named!r}")
    for key, fixed in _FIXED_SETTINGS.items():
        if config.get(key, fixed) is not fixed:
            raise RemoteProtocolError(f"run files: config.json changes {key!r}")
    layers = [config[key] for key in _LAYER_KEYS if key in config]
    if any(not isinstance(count, int) or not 0 < count <= MAX_LAYERS for count in layers):
        raise RemoteProtocolError(f"run files: the number of layers is outside 1..{MAX_LAYERS}")
    for value in _scalars(config):
        if isinstance(value, int) and abs(value) >= _MAX_INTEGER:
            raise RemoteProtocolError("run files: config.json contains an integer that is too large")
    for key in ("rope_parameters", "rope_scaling"):
        for rope in _rope_types(config.get(key)):
            if rope not in ROPE_TYPES:
                raise RemoteProtocolError(f"run files: rotary scaling {str(rope)[:64]!r} depends on the batch")


def read_tokenizer(files: Mapping[str, bytes], vocabulary: int) -> PreTrainedTokenizerFast:
    """The run's fast tokenizer: vocabulary and rules of tokenizer.json, and four special tokens; no templates."""
    special = {}
    for name, token in json_file(files, "tokenizer_config.json").items():
        if name in SPECIAL_TOKENS and token is not None:
            special[name] = token.get("content") if isinstance(token, dict) else token
    if "tokenizer.json" not in files:
        raise RemoteProtocolError("run files: tokenizer.json is missing")
    try:
        backend = Tokenizer.from_str(files["tokenizer.json"].decode())
    except Exception as error:  # the library raises nothing narrower
        raise RemoteProtocolError(f"run files: tokenizer.json is not a valid tokenizer: {str(error)[:200]}") from error
    known = backend.get_vocab(with_added_tokens=True)
    if max(known.values(), default=vocabulary) >= vocabulary:
        raise RemoteProtocolError("run files: the tokenizer has tokens that the model does not")
    if any(not isinstance(token, str) or token not in known for token in special.values()):
        raise RemoteProtocolError("run files: a special token is not in the vocabulary")
    backend.no_truncation()
    backend.no_padding()
    # Before anything is encoded with it: a post-processor can put a thousand tokens around every prompt.
    if backend.num_special_tokens_to_add(is_pair=False) > MAX_ADDED_TOKENS:
        raise RemoteProtocolError("run files: the tokenizer adds too many tokens to a text")
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **special)


def read_end_tokens(files: Mapping[str, bytes], vocabulary: int) -> list[int]:
    """The model's own end tokens; `TextCodec` adds the tokenizer's."""
    ends = json_file(files, "generation_config.json").get("eos_token_id", [])
    stops = ends if isinstance(ends, list) else [ends]
    if any(type(token) is not int or not 0 <= token < vocabulary for token in stops):
        raise RemoteProtocolError("run files: an end token is outside the vocabulary")
    return stops


def _rope_types(value: object) -> list[object]:
    """The rotary types in a rope setting, which is flat or has one entry for each kind of layer."""
    if not isinstance(value, dict):
        return []
    nested = [rope for inner in value.values() for rope in _rope_types(inner)]
    return nested + [value[key] for key in ("rope_type", "type") if key in value]


def _scalars(config: object) -> list[object]:
    """Every scalar in a decoded JSON value."""
    scalars, pending = [], [config]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        else:
            scalars.append(value)
    return scalars
