"""Choice of a model's attention kernels. Those of flash-attn compute rows joined to one without any padding."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal

from p2prl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

Attention = Literal["sdpa", "flash_attention_2"]


def exact_attention(config: PreTrainedConfig) -> str:
    """The kernels that compute a configuration's attention as defined: sdpa, or eager where that computes another.

    torch's attention ignores `attn_logit_softcapping` (Gemma 2), and has no attention sinks (gpt-oss): there
    transformers does not offer it. Sampler, scorer and trainer must agree on it.
    """
    import transformers  # here: a plan of memory needs the names of kernels alone

    model_class = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    has_sdpa = getattr(model_class, "_supports_sdpa", True)
    return "sdpa" if has_sdpa and not _caps_scores(config) else "eager"


def use_attention(model: PreTrainedModel, attention: Attention) -> None:
    """Let the model use these kernels. `ConfigError` where they are not installed or the model cannot use them."""
    if attention == "sdpa":
        return  # as loaded: see `exact_attention`
    if exact_attention(model.config) == "eager":
        raise ConfigError(
            f"attention = {attention!r} does not compute this model's attention in all versions of flash-attn",
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
