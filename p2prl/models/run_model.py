"""The model of a run, rebuilt from the files the run ships: checked without memory first, then built.

The model is created on the meta device and compared with the layout digest of the run manifest. Memory for the weights
is allocated only then. Faults are the learner's (`RemoteProtocolError`) or a mismatch with the manifest
(`IntegrityError`), never ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import PreTrainedConfig, PreTrainedModel, initialization

from p2prl.confinement.children import Launch
from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.models.base_model.attention import exact_attention
from p2prl.models.base_model.pretrained import quiet_transformers
from p2prl.models.run_files.checks import (
    MAX_MODULES,
    check_config,
    json_file,
    model_settings,
    read_end_tokens,
    read_tokenizer,
)
from p2prl.models.tokenizer.backend import read_special_tokens
from p2prl.models.tokenizer.confined import ConfinedTokenizer
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import TORCH_DTYPES, WeightLayout, layout_of
from p2prl.models.weights.lora import add_lora
from p2prl.protocol import limits
from p2prl.protocol.lora_spec import LoraSpec

MAX_SCRATCH_BYTES = 256 * 1024 * 1024
"""Tensors a model needs besides its weights (rotary tables, masks)."""

_MISFITS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
"""Exceptions of transformers on an invalid configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunModel:
    """A checked model that takes no memory yet. An engine builds what it needs from it."""

    files: Mapping[str, bytes]
    """The run's files, checked: config.json, generation_config.json, tokenizer.json, tokenizer_config.json."""
    layout: WeightLayout
    """The layout of the run's policies."""
    tokenizer: Any
    """The run's fast tokenizer, or one in a confined process."""
    skeleton: PreTrainedModel
    """The causal LM on the meta device, with its configuration and its end tokens."""
    lora: LoraSpec | None = None
    """Adapters in the model, if any."""
    longest_completion: int = 1
    """The run's limit on new tokens, for engines that plan their memory."""

    @property
    def cached_numbers(self) -> int:
        """Keys and values of one token, in numbers."""
        config = self.skeleton.config.get_text_config()
        heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        width = max(width, getattr(config, "qk_head_dim", None) or 0)  # of latent attention, whose head_dim is a part
        layers: int = config.num_hidden_layers
        return 2 * layers * heads * width

    def settings(self) -> dict[str, object]:
        """The checked settings of config.json and the name of the model's class, for an engine with its own loader."""
        raw = json_file(self.files, "config.json")
        named = {"model_type": raw["model_type"], "architectures": [type(self.skeleton).__name__]}
        return model_settings(raw, type(self.skeleton.config)) | named

    def codec(self) -> TextCodec:
        """Text to token ids as every peer of the run does it."""
        return TextCodec(self.tokenizer, self.skeleton)

    def build(self, *, device: torch.device, dtype: str) -> PreTrainedModel:
        """The causal LM on `device` in `dtype`, in evaluation mode, all weights zero."""
        with initialization.no_init_weights(), torch.device(device):
            model = _from_config(self.skeleton.config, dtype, self.lora)
        model.tie_weights()
        if layout_of(model, self.layout.tensors[0].dtype) != self.layout:
            raise IntegrityError("the model built for the run does not have the run's layout")
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.zero_()
        model.generation_config = self.skeleton.generation_config
        return model.eval()

    def outline(self) -> PreTrainedModel:
        """The causal LM in float32 on the CPU, in evaluation mode, with its weights on the meta device.

        Tables that are no weights, such as rotary frequencies, are computed.
        """
        with initialization.no_init_weights():  # pages of the weights are allocated but never written
            model = _from_config(self.skeleton.config, "float32", self.lora)
        model.tie_weights()
        saved = model.state_dict(keep_vars=True)  # holds every tensor until the end, so that its id stays its own
        absent: dict[int, torch.Tensor] = {}
        for tensor in saved.values():
            meta = tensor.detach().to("meta")
            is_parameter = isinstance(tensor, nn.Parameter)
            absent[id(tensor)] = nn.Parameter(meta, requires_grad=False) if is_parameter else meta
        for module in model.modules():
            for held in (module._parameters, module._buffers):
                held.update({name: absent[id(tensor)] for name, tensor in held.items() if id(tensor) in absent})
        return model.eval()


ReadTokenizer = Callable[[Mapping[str, bytes], int], Any]
"""Reads the tokenizer of a run's files for a model with that many token ids."""


def confined_tokenizer_reader(launch: Launch | None = None) -> ReadTokenizer:
    """Reads a tokenizer into a confined process of its own, which `launch` starts: for a stranger's run."""

    def read(files: Mapping[str, bytes], vocabulary: int) -> ConfinedTokenizer:
        special = read_special_tokens(json_file(files, "tokenizer_config.json"))
        if "tokenizer.json" not in files:
            raise RemoteProtocolError("run files: tokenizer.json is missing")
        return ConfinedTokenizer(files["tokenizer.json"], special, vocabulary, launch=launch)

    return read


def read_run_model(
    files: Mapping[str, bytes],
    *,
    layout_digest: bytes,
    weight_bytes: int,
    dtype: str,
    lora: LoraSpec | None = None,
    open_tokenizer: ReadTokenizer = read_tokenizer,
) -> RunModel:
    """Check a run's files and read its model from them, without allocating its weights.

    `layout_digest`, `weight_bytes` and `lora` are the run manifest's: what the owner of this machine was told. In
    memory the weights are held in `dtype`. By default the tokenizer runs in this process. `RemoteProtocolError` when
    the files are not an acceptable model, `IntegrityError` when they do not match the layout or its size.
    """
    quiet_transformers()
    raw = json_file(files, "config.json")
    check_config(raw)
    skeleton = _skeleton(raw, lora)
    layout = _promised_layout(skeleton, layout_digest)
    if layout.size_bytes != weight_bytes:
        raise IntegrityError(
            f"config.json describes a model of {layout.size_bytes} bytes of weights, "
            f"and the manifest one of {weight_bytes}"
        )
    held = layout_of(skeleton, dtype).size_bytes
    if held > limits.MAX_WEIGHT_BYTES:
        raise RemoteProtocolError(f"the run's model needs {held} bytes of memory, more than {limits.MAX_WEIGHT_BYTES}")
    vocabulary: int = skeleton.config.vocab_size
    tokenizer = open_tokenizer(files, vocabulary)
    skeleton.generation_config = transformers.GenerationConfig(eos_token_id=read_end_tokens(files, vocabulary))
    return RunModel(files=files, layout=layout, tokenizer=tokenizer, skeleton=skeleton, lora=lora)


def _skeleton(raw: dict[str, object], lora: LoraSpec | None) -> PreTrainedModel:
    """The run's causal LM on the meta device."""
    try:
        config_class = transformers.CONFIG_MAPPING[raw["model_type"]]
        config = config_class(**model_settings(raw, config_class))
        if not 0 < config.vocab_size <= limits.MAX_VOCABULARY:
            raise RemoteProtocolError(f"run files: a vocabulary of {config.vocab_size} tokens")
        with torch.device("meta"), _few_modules():
            skeleton = _from_config(config, "float32", lora)
    except _MISFITS as error:
        raise RemoteProtocolError(f"run files: config.json is not a valid model: {str(error)[:200]}") from error
    scratch = sum(buffer.numel() * buffer.element_size() for buffer in skeleton.buffers())
    if scratch > MAX_SCRATCH_BYTES:
        raise RemoteProtocolError(f"run files: the model needs {scratch} bytes besides its weights")
    return skeleton


@contextmanager
def _few_modules() -> Iterator[None]:
    """`RemoteProtocolError` once more modules are made than any model has, whatever setting asked for them."""
    made = itertools.count(1)

    def count(module: nn.Module, name: str, part: object) -> None:
        del module, name, part
        if next(made) > MAX_MODULES:
            raise RemoteProtocolError(f"run files: the model has more than {MAX_MODULES} modules")

    hooks = [register_module_module_registration_hook(count), register_module_parameter_registration_hook(count)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _from_config(config: PreTrainedConfig, dtype: str, lora: LoraSpec | None) -> PreTrainedModel:
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=TORCH_DTYPES[dtype], attn_implementation=exact_attention(config), trust_remote_code=False
    )
    if lora is not None:
        add_lora(model, lora)
    return model


def _promised_layout(skeleton: nn.Module, layout_digest: bytes) -> WeightLayout:
    """The layout of the manifest's digest, in whichever dtype the run chose."""
    for dtype in TORCH_DTYPES:
        layout = layout_of(skeleton, dtype)
        if layout.digest == layout_digest:
            layout.check()
            return layout
    raise IntegrityError("the run's config.json does not match the layout in its manifest")
