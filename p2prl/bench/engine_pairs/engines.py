"""Engines that compute one small model in different ways, with logits as large as those of real models."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from p2prl.bench.device_time import CPU
from p2prl.errors import ConfigError
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.vllm.engine import VllmOptions
from p2prl.models.engines.vllm.library import import_vllm
from p2prl.models.engines.vllm.sampler import VllmSampler
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import read_run_model
from p2prl.models.sampler_port import Sampler
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten, layout_of

ENGINES = ("sdpa", "eager", "fp32 head")
"""Fused attention, attention written out, and fused attention below an output layer in float32, as vLLM's
`head_dtype`. Each of them samples and scores."""

VLLM = "vllm"
"""Samples only, where it is installed: a scorer needs all logits of each position."""

VOCABULARY = 512
_SIZES = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
"""With heads of 32: vLLM has no attention for smaller ones."""

_VLLM_BYTES, _VLLM_GPU_BYTES, _VLLM_CONTEXT = 1 << 28, 1 << 32, 64
"""On a GPU its scratch counts too."""

_INITIAL_DEVIATION = 0.05
_PROBE = (8, 32)
"""Rows and tokens whose logits are scaled to the spread."""


class Float32Head(nn.Linear):
    """An output layer that computes in float32, whatever the dtype of its weights."""

    def forward(self, states: Tensor) -> Tensor:
        """Logits in float32."""
        return nn.functional.linear(states.float(), self.weight.float())


def model_of_spread(spread: float, seed: int) -> PreTrainedModel:
    """A random Qwen2 model whose logits have the standard deviation `spread`, in float32."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=_INITIAL_DEVIATION,
        bos_token_id=0,
        eos_token_id=0,
        **_SIZES,
    )
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).eval()
        ids = torch.randint(0, VOCABULARY, _PROBE)
        model.lm_head.weight.mul_(spread / model(input_ids=ids).logits.std(dim=-1).mean())
    return model


def engines_on(device: torch.device) -> list[tuple[str, str, torch.device]]:
    """(name of the row, engine, device) of all engines: on the CPU, and on the device if it is another one."""
    if device.type == "cpu":
        return [(name, name, device) for name in ENGINES]
    return [(f"{name} on {each.type}", name, each) for each in (CPU, device) for name in ENGINES]


def engine(name: str, model: PreTrainedModel, dtype: str, device: torch.device) -> PolicyModel:
    """`model` as the engine `name` computes it in `dtype` on a device, with weights of its own."""
    made = copy.deepcopy(model).to(device=device, dtype=getattr(torch, dtype))
    made.set_attn_implementation("eager" if name == "eager" else "sdpa")
    if name == "fp32 head":
        head = Float32Head(made.lm_head.in_features, made.lm_head.out_features, bias=False)
        head.weight = made.lm_head.weight
        made.lm_head = head
    return PolicyModel(made, layout_of(made, dtype))


class VllmEngines:
    """vLLM's engine for each dtype, which takes one model after the other. Empty where it is not installed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._samplers: dict[str, Sampler] = {}
        self._version = itertools.count()
        try:
            import_vllm()
        except ConfigError:
            self.names: tuple[str, ...] = ()
        else:
            self.names = (VLLM,)

    def sampler(self, model: PreTrainedModel, dtype: str) -> Sampler:
        """The engine with the weights of `model`."""
        layout = layout_of(model, dtype)
        if dtype not in self._samplers:
            files = export_run_files(LoadedModel(model=model, tokenizer=tiny_model().tokenizer))
            run = read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype=dtype)
            memory_bytes = _VLLM_BYTES if self._device.type == "cpu" else _VLLM_GPU_BYTES
            options = VllmOptions(memory_bytes=memory_bytes, context=_VLLM_CONTEXT)
            self._samplers[dtype] = VllmSampler(run, device=self._device, dtype=dtype, options=options)
        made = self._samplers[dtype]
        made.swap(made.stage(bytes(flatten(model, layout)), next(self._version)))
        return made
