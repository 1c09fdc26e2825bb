"""Choice of a model's attention kernels. Those of flash-attn compute rows joined to one without any padding."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

from p2prl.errors import ConfigError

Attention = Literal["sdpa", "flash_attention_2"]


def exact_attention(config: Any) -> str:
    """The kernels that compute a configuration's attention as defined: sdpa, or eager where scores are capped.

    torch's attention ignores `attn_logit_softcapping` (Gemma 2). Sampler, scorer and trainer must agree on it.
    """
    return "eager" if _caps_scores(config) else "sdpa"


def use_attention(model: Any, attention: Attention) -> None:
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


def _caps_scores(config: Any) -> bool:
    return getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
