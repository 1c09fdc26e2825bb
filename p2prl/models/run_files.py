"""A model's configuration and tokenizer as the files of a run: made by the learner, read with suspicion by all others.

The files are data that a stranger signed. Their architecture must be one that is known here, nothing in them may name
code, kernels or templates, and the whole model is first built without memory and compared with the layout digest of
the run manifest; only then is anything allocated. A misfit is the learner's fault (`RemoteProtocolError`) or a
corrupt promise (`IntegrityError`), never ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from tokenizers import Tokenizer
from torch import nn
from transformers import initialization

from p2prl.errors import ConfigError, IntegrityError, RemoteProtocolError
from p2prl.models.pretrained import LoadedModel, best_device, default_dtype, names_code, quiet_transformers, read_json
from p2prl.models.weight_layout import TORCH_DTYPES, WeightLayout, layout_of
from p2prl.protocol import limits

ARCHITECTURES = frozenset(
    {
        "gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt2", "gpt_neox", "granite", "llama", "mistral", "olmo",
        "olmo2", "olmo3", "opt", "phi", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2",
    }
)  # fmt: skip
"""Model types a run may use: decoders whose code is part of transformers and whose logits depend on nothing but the
tokens before."""

ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary scalings a run may use. `dynamic` and `longrope` change with the longest row of a batch: no two peers who
batch differently would agree on a token."""

MAX_LAYERS = 256
"""Decoder layers of a run's model; each costs Python objects even without memory."""

MAX_SCRATCH_BYTES = 256 * 1024 * 1024
"""Tensors a model needs besides its weights (rotary tables, masks)."""

MAX_ADDED_TOKENS = 4
"""Special tokens a tokenizer may put around a text; real ones add a beginning, an end, or both."""

_FIXED_SETTINGS = {
    "is_causal": True,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "return_dict": True,
    "output_attentions": False,
    "output_hidden_states": False,
}
"""Settings that would make a decoder look ahead or answer in another form; a run may state them, not change them."""

_MAX_INTEGER = 1 << 31
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_LOCAL_KEYS = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_MISFITS = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
"""What transformers raises on a configuration that makes no sense."""


def export_run_files(loaded: LoadedModel) -> dict[str, bytes]:
    """The files strangers need to rebuild a model's architecture and tokenizer, without templates and without code.

    `ConfigError` when no run could use the model.
    """
    config = _json(loaded.model.config.to_json_string())
    tokens = {name: getattr(loaded.tokenizer, name) for name in _SPECIAL_TOKENS}
    ends = getattr(loaded.model.generation_config, "eos_token_id", None)
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    backend = Tokenizer.from_str(loaded.tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    # A run is named by these bytes: the same model must give the same ones, so nothing local and all keys sorted.
    files = {
        "config.json": _dump({key: value for key, value in config.items() if key not in _LOCAL_KEYS}),
        "generation_config.json": _dump({"eos_token_id": sorted(ends)}),
        "tokenizer.json": backend.to_str().encode(),
        "tokenizer_config.json": _dump({k: str(v) for k, v in tokens.items() if v is not None}),
    }
    try:
        _check_config(_object(files, "config.json"))
    except RemoteProtocolError as error:
        raise ConfigError(f"a run cannot use this model: {error}", remedy="Choose another base model.") from error
    return files


def build_from_run(
    files: Mapping[str, bytes],
    *,
    layout_digest: bytes,
    max_weight_bytes: int,
    device: torch.device | None = None,
    dtype: str | None = None,
) -> tuple[LoadedModel, WeightLayout]:
    """Build a run's model, all weights zero, and its tokenizer from the files the run ships.

    `layout_digest` is the run manifest's; `max_weight_bytes` what the user grants the weights, on the wire and in
    memory alike. `device` and `dtype` default to the best there is. Returns the model and the layout its policies come
    in. Nothing of the weights' size is allocated before all checks have passed. `RemoteProtocolError` when the files
    are not an acceptable model's, `IntegrityError` when they are not those of the layout.
    """
    device = device or best_device()
    dtype = dtype or default_dtype(device)
    quiet_transformers()
    raw = _object(files, "config.json")
    _check_config(raw)
    ghost, config = _ghost(raw)
    layout = _promised_layout(ghost, layout_digest)
    size = max(layout.size_bytes, layout_of(ghost, dtype).size_bytes)
    if size > max_weight_bytes:
        raise RemoteProtocolError(f"the run's model needs {size} bytes of weights, more than {max_weight_bytes}")
    vocabulary: int = config.vocab_size
    tokenizer = _tokenizer(files, vocabulary)
    with initialization.no_init_weights(), torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=TORCH_DTYPES[dtype], attn_implementation="sdpa", trust_remote_code=False
        )
    model.tie_weights()
    if layout_of(model, layout.tensors[0].dtype) != layout:
        raise IntegrityError("the model built for the run does not have the run's layout")
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    model.generation_config = transformers.GenerationConfig(eos_token_id=_stops(files, vocabulary))
    return LoadedModel(model=model.eval(), tokenizer=tokenizer), layout


def _check_config(config: dict[str, Any]) -> None:
    """Raise `RemoteProtocolError` on anything that could run code, stall or depend on the batch."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise RemoteProtocolError(f"run files: architecture {str(kind)[:64]!r} is not known here")
    if named := names_code(config):
        raise RemoteProtocolError(f"run files: config.json asks for code through {named!r}")
    for key, fixed in _FIXED_SETTINGS.items():
        if config.get(key, fixed) is not fixed:
            raise RemoteProtocolError(f"run files: config.json changes {key!r}")
    layers = [config[key] for key in _LAYER_KEYS if key in config]
    if any(not isinstance(count, int) or not 0 < count <= MAX_LAYERS for count in layers):
        raise RemoteProtocolError(f"run files: the number of layers is outside 1..{MAX_LAYERS}")
    for value in _leaves(config):
        if isinstance(value, int) and abs(value) >= _MAX_INTEGER:
            raise RemoteProtocolError("run files: config.json holds an absurd integer")
    for key in ("rope_parameters", "rope_scaling"):
        for rope in _ropes(config.get(key)):
            if rope not in ROPE_TYPES:
                raise RemoteProtocolError(f"run files: rotary scaling {str(rope)[:64]!r} depends on the batch")


def _ropes(value: object) -> list[object]:
    """The rotary types in a rope setting, which is flat or has one entry for each kind of layer."""
    if not isinstance(value, dict):
        return []
    nested = [rope for inner in value.values() for rope in _ropes(inner)]
    return nested + [value[key] for key in ("rope_type", "type") if key in value]


def _leaves(config: object) -> list[object]:
    """Every scalar in a decoded JSON value."""
    leaves, pending = [], [config]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        else:
            leaves.append(value)
    return leaves


def _ghost(raw: dict[str, Any]) -> tuple[nn.Module, Any]:
    """The run's model without memory, and its configuration."""
    try:
        settings = {key: value for key, value in raw.items() if key != "model_type"}
        config = transformers.AutoConfig.for_model(raw["model_type"], **settings)
        if not 0 < config.vocab_size <= limits.MAX_VOCABULARY:
            raise RemoteProtocolError(f"run files: a vocabulary of {config.vocab_size} tokens")
        with torch.device("meta"):
            ghost = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
            )
    except _MISFITS as error:
        raise RemoteProtocolError(f"run files: config.json makes no model: {str(error)[:200]}") from error
    scratch = sum(buffer.numel() * buffer.element_size() for buffer in ghost.buffers())
    if scratch > MAX_SCRATCH_BYTES:
        raise RemoteProtocolError(f"run files: the model needs {scratch} bytes besides its weights")
    return ghost, config


def _promised_layout(ghost: nn.Module, layout_digest: bytes) -> WeightLayout:
    """The layout of the manifest's digest, in whichever word type the run chose."""
    for dtype in TORCH_DTYPES:
        layout = layout_of(ghost, dtype)
        if layout.digest == layout_digest:
            layout.check()
            return layout
    raise IntegrityError("the run's config.json does not make the layout its manifest promises")


def _tokenizer(files: Mapping[str, bytes], vocabulary: int) -> Any:
    """The run's fast tokenizer: the vocabulary and rules of tokenizer.json, and four special tokens; no templates."""
    special = {}
    for name, token in _object(files, "tokenizer_config.json").items():
        if name in _SPECIAL_TOKENS and token is not None:
            special[name] = token.get("content") if isinstance(token, dict) else token
    try:
        backend = Tokenizer.from_str(files["tokenizer.json"].decode())
    except Exception as error:  # the library raises nothing narrower
        raise RemoteProtocolError(f"run files: tokenizer.json makes no tokenizer: {str(error)[:200]}") from error
    known = backend.get_vocab(with_added_tokens=True)
    if max(known.values(), default=vocabulary) >= vocabulary:
        raise RemoteProtocolError("run files: the tokenizer holds tokens the model does not")
    if any(not isinstance(token, str) or token not in known for token in special.values()):
        raise RemoteProtocolError("run files: a special token is not in the vocabulary")
    backend.no_truncation()
    backend.no_padding()
    # Before anything is encoded with it: a post-processor can put a thousand tokens around every prompt.
    if backend.num_special_tokens_to_add(is_pair=False) > MAX_ADDED_TOKENS:
        raise RemoteProtocolError("run files: the tokenizer adds too many tokens to a text")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **special)


def _stops(files: Mapping[str, bytes], vocabulary: int) -> list[int]:
    """The model's own end tokens; the tokenizer's are added by whoever samples."""
    ends = _object(files, "generation_config.json").get("eos_token_id", [])
    stops = ends if isinstance(ends, list) else [ends]
    if any(type(token) is not int or not 0 <= token < vocabulary for token in stops):
        raise RemoteProtocolError("run files: an end token is outside the vocabulary")
    return stops


def _object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in files:
        raise RemoteProtocolError(f"run files: {name} is missing")
    try:
        return read_json(files[name], name)
    except ConfigError as error:
        raise RemoteProtocolError(f"run files: {error}") from error


def _json(text: str) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(text)
    return decoded


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()
