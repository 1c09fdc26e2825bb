"""Choice of a model's attention kernels. Those of flash-attn compute rows joined to one without any padding."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal

from p2prl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

ARCHITECTURES = {
    "gemma": "Gemma 1",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3 of 270M and 1B",
    "glm": "GLM-4 9B, GLM Edge",
    "glm4": "GLM-4-0414",
    "gpt2": "GPT-2, DistilGPT2",
    "gpt_neox": "Pythia, GPT-NeoX 20B",
    "granite": "Granite 3 without experts",
    "llama": "Llama 2 and 3, SmolLM 1 and 2, TinyLlama, Yi",
    "mistral": "Mistral 7B, Mistral Nemo",
    "olmo": "OLMo 1",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "opt": "OPT",
    "phi": "Phi-1, Phi-1.5, Phi-2",
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen2_moe": "Qwen1.5-MoE, Qwen2 57B-A14B",
    "qwen3": "Qwen3 without experts",
    "qwen3_moe": "Qwen3 30B-A3B and 235B-A22B",
    "smollm3": "SmolLM3",
    "stablelm": "StableLM 2",
    "starcoder2": "StarCoder2",
}
"""By `model_type` of config.json: decoders whose code is part of transformers and whose logits depend on nothing but
the tokens before."""


def architecture_table() -> str:
    """The table as Markdown."""
    rows = [f"| `{kind}` | {models} |" for kind, models in ARCHITECTURES.items()]
    return "\n".join(["| `model_type` in config.json | for example |", "|---|---|", *rows])


Attention = Literal["sdpa", "flash_attention_2"]


def exact_attention(config: PreTrainedConfig) -> str:
    """The kernels that compute a configuration's attention as defined: sdpa, or eager where scores are capped.

    torch's attention ignores `attn_logit_softcapping` (Gemma 2). Sampler, scorer and trainer must agree on it.
    """
    return "eager" if _caps_scores(config) else "sdpa"


def use_attention(model: PreTrainedModel, attention: Attention) -> None:
    """Let the model use these kernels. `ConfigError` where they are not installed or the model cannot use them."""
    if attention == "sdpa":
        return  # as loaded: see `exact_attention`
    if _caps_scores(model.config):
        raise ConfigError(
            f"attention = {attention!r} drops the cap on this model's attention scores in older versions of flash-attn",
            remedy='Set learner.memory.attention = "sdpa".',
        )
    # Without the package, transformers would fetch kernels from the hub and run them.
    if importlib.util.find_spec("flash_attn") is None:
        raise ConfigError(
            f"attention = {attention!r} needs the package flash-attn, which is not installed",
            remedy='Install flash-attn, or set learner.memory.attention = "sdpa".',
        )
    if next(model.parameters()).device.type != "cuda":
        raise ConfigError(
            f"attention = {attention!r} runs on CUDA alone", remedy='Set learner.memory.attention = "sdpa".'
        )
    try:
        model.set_attn_implementation(attention)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"the model cannot use attention = {attention!r}: {error}",
            remedy='Set learner.memory.attention = "sdpa".',
        ) from error


def _caps_scores(config: PreTrainedConfig) -> bool:
    return getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
