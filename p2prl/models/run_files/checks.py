"""Checks of the configuration and tokenizer that a run ships, before anything is built from them.

The files are data signed by a stranger. Their architecture must be a decoder of transformers, and they must not refer
to code, kernels or templates. Every fault is the learner's: `RemoteProtocolError`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerFast

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.models.base_model.architectures import architecture_fault
from p2prl.models.base_model.model_folder import names_code, read_json
from p2prl.models.tokenizer.backend import read_backend, read_special_tokens

ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary scalings a run may use. `dynamic` and `longrope` change with the longest row of a batch: two peers who batch
differently would not agree on a token."""

MAX_LAYERS = 256
"""Decoder layers of a run's model; each costs Python objects even on the meta device."""

MAX_HEADS = 512
"""Attention heads, and key-value heads, of a layer; the largest open models have 128."""

MAX_HEAD_NORMS = 4096
"""Norms of single heads in all layers (StableLM's `qk_layernorm`); each is a module. StableLM 2 12B has 1,600."""

MAX_EXPERTS = 512
"""Experts of a layer; open models have up to 512."""

MAX_LIST = 1024
"""Entries of a list in config.json. Such lists have one entry for each layer; some are searched once for each layer."""

MAX_NESTING = 8
"""Levels of objects and lists in config.json; real ones have three. transformers copies them recursively."""

LABEL_KEYS = ("num_labels", "id2label", "label2id", "problem_type")
"""Settings of classifiers. transformers makes a name for each label: 300 bytes can ask for 2,000,000,000."""

_FIXED_SETTINGS: dict[str, tuple[bool | None, ...]] = {
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "use_bidirectional_attention": (False, None),
    "return_dict": (True,),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
}
"""Settings that would make a decoder attend ahead or return other outputs; a run must keep the default values."""

_MAX_INTEGER = 1 << 31
"""Far above any real setting; a larger integer would overflow or stall its reader."""
_COUNTS = {
    "layers": (("num_hidden_layers", "n_layer", "n_layers", "num_layers"), MAX_LAYERS),
    "attention heads": (("num_attention_heads", "n_head", "n_heads", "num_heads"), MAX_HEADS),
    "key-value heads": (("num_key_value_heads", "num_kv_heads"), MAX_HEADS),
    "experts": (("num_experts", "num_local_experts", "n_routed_experts"), MAX_EXPERTS),
    "experts for a token": (("num_experts_per_tok",), MAX_EXPERTS),
}
"""Settings that say how many objects to make, or how often to loop. Those of any other name that ends so are bounded
too (`_COUNTED`), and so is what is made of them (`MAX_MODULES`)."""

_COUNTED = {"layers": MAX_LAYERS, "layer": MAX_LAYERS, "heads": MAX_HEADS, "experts": MAX_EXPERTS, "blocks": MAX_LAYERS}
"""Bounds of other settings, by the end of their names."""

MAX_MODULES = 65_536
"""Modules and parameters of a model; the largest open ones have some ten thousand."""

_OPTIONAL_COUNTS = ("num_key_value_heads", "num_kv_heads")
"""Counts that may be null: then transformers takes the attention heads."""

_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "linear_attention", "conv", "dense", "sparse"})
"""Kinds of layers that a test has; `chunked_attention` is none of them."""
_DEFAULT_HEADS = 32
_DEFAULT_LAYERS = 32


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
    if fault := architecture_fault(config.get("model_type")):
        raise RemoteProtocolError(f"run files: the architecture is not supported: {fault}")
    if named := names_code(config):
        raise RemoteProtocolError(f"run files: config.json requires code through {named!r}")
    for key, allowed in _FIXED_SETTINGS.items():
        if key in config and not any(config[key] is value for value in allowed):
            raise RemoteProtocolError(f"run files: config.json changes {key!r}")
    if config.get("per_layer_config") is not None:
        raise RemoteProtocolError("run files: config.json changes 'per_layer_config'")
    _check_sizes(config)
    _check_counts(config)
    for key in ("rope_parameters", "rope_scaling"):
        for rope in _rope_types(config.get(key)):
            if not isinstance(rope, str) or rope not in ROPE_TYPES:
                raise RemoteProtocolError(f"run files: rotary scaling {str(rope)[:64]!r} depends on the batch")


def model_settings(config: dict[str, Any], config_class: type) -> dict[str, Any]:
    """The settings of a checked config.json that its class may be built from.

    transformers sets every other key as an attribute. Keys that would replace a part of the class are left out: a new
    `attribute_map` gives a checked setting another, unchecked name. So are private keys, labels and the local dtype.
    """
    fields = {field.name for field in dataclasses.fields(config_class)}
    fields |= {"rope_scaling", *config_class.attribute_map}  # type: ignore[attr-defined]
    ignored = ("model_type", "dtype", "torch_dtype", *LABEL_KEYS)
    return {
        key: value
        for key, value in config.items()
        if key not in ignored and not key.startswith("_") and (key in fields or not hasattr(config_class, key))
    }


def read_tokenizer(files: Mapping[str, bytes], vocabulary: int) -> PreTrainedTokenizerFast:
    """The run's fast tokenizer: vocabulary and rules of tokenizer.json, and four special tokens; no templates."""
    special = read_special_tokens(json_file(files, "tokenizer_config.json"))
    if "tokenizer.json" not in files:
        raise RemoteProtocolError("run files: tokenizer.json is missing")
    backend = read_backend(files["tokenizer.json"], list(special.values()), vocabulary)
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **special)


def read_end_tokens(files: Mapping[str, bytes], vocabulary: int) -> list[int]:
    """The model's own end tokens; `TextCodec` adds the tokenizer's."""
    ends = json_file(files, "generation_config.json").get("eos_token_id", [])
    stops = ends if isinstance(ends, list) else [ends]
    if any(type(token) is not int or not 0 <= token < vocabulary for token in stops):
        raise RemoteProtocolError("run files: an end token is outside the vocabulary")
    return stops


def _check_counts(config: dict[str, Any]) -> None:
    """Bound every setting that multiplies modules."""
    for name, (keys, most) in _COUNTS.items():
        for key in keys:
            count = config.get(key, 1)
            if count is None and key in _OPTIONAL_COUNTS:
                continue
            if not isinstance(count, int) or not 0 < count <= most:
                raise RemoteProtocolError(f"run files: the number of {name} is outside 1..{most}")
    for key, value in config.items():
        bound = _COUNTED.get(key.rpartition("_")[2], _MAX_INTEGER)
        if isinstance(value, int) and value > bound:
            raise RemoteProtocolError(f"run files: {key[:64]!r} is more than {bound}")
    if config.get("qk_layernorm") and config["model_type"] == "stablelm":
        heads = config.get("num_attention_heads", _DEFAULT_HEADS)
        heads += config.get("num_key_value_heads", _DEFAULT_HEADS) or heads
        if heads * config.get("num_hidden_layers", _DEFAULT_LAYERS) > MAX_HEAD_NORMS:
            raise RemoteProtocolError(f"run files: the model has more than {MAX_HEAD_NORMS} norms of heads")
    for key in ("layer_types", "mlp_layer_types"):
        kinds = config.get(key)
        if isinstance(kinds, list) and not all(isinstance(kind, str) and kind in _LAYER_TYPES for kind in kinds):
            raise RemoteProtocolError("run files: config.json has an unknown type of layer")


def _check_sizes(config: dict[str, Any]) -> None:
    """Bound integers, lists and nesting, wherever they are in the configuration."""
    pending: list[tuple[object, int]] = [(config, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, dict | list):
            if depth > MAX_NESTING:
                raise RemoteProtocolError("run files: config.json is nested too deep")
            if isinstance(value, list) and len(value) > MAX_LIST:
                raise RemoteProtocolError(f"run files: config.json has a list of more than {MAX_LIST} entries")
            pending += [(inner, depth + 1) for inner in (value.values() if isinstance(value, dict) else value)]
        elif isinstance(value, int) and abs(value) >= _MAX_INTEGER:
            raise RemoteProtocolError("run files: config.json contains an integer that is too large")


def _rope_types(value: object) -> list[object]:
    """The rotary types in a rope setting, which is flat or has one entry for each kind of layer."""
    if not isinstance(value, dict):
        return []
    nested = [rope for inner in value.values() for rope in _rope_types(inner)]
    return nested + [value[key] for key in ("rope_type", "type") if key in value]
