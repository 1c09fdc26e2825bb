"""Settings that trade memory against time and rounding in a training step: the `[learner.memory]` table of run.toml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from p2prl.errors import ConfigError, require
from p2prl.models.base_model.attention import Attention

Precision = Literal["fp32", "bf16", "bf16_stochastic", "bf16_kahan"]
"""Types of a training step (`MemoryConfig.precision` without `auto`)."""

OptimizerStates = Literal["full", "8bit"]

PURE_BF16: tuple[Precision, ...] = ("bf16_stochastic", "bf16_kahan")
"""Precisions whose weights are held in bfloat16 alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryConfig:
    """Precision, optimizer states and micro-batches."""

    precision: Literal["auto", "fp32", "bf16", "bf16_stochastic", "bf16_kahan"] = "auto"
    """fp32: everything in float32. bf16: products in bfloat16, weights and optimizer in float32. bf16_stochastic and
    bf16_kahan: weights, gradients and optimizer in bfloat16, new weights rounded at random (by the step's number, so a
    replay repeats it) or with what rounding cut off kept beside them. auto: bf16 on CUDA for a run that samples in 16
    bits, else fp32."""
    optimizer_states: OptimizerStates = "full"
    """full: as wide as the weights. 8bit: AdamW's means in 8 bits through torchao (extra `lowbit`)."""
    checkpointing: Literal["auto", "on", "off"] = "auto"
    """Activation checkpointing: less memory for about a third more time. auto: only where micro-batches would be too
    small without it."""
    attention: Attention = "sdpa"
    """sdpa: torch's kernels, rows padded to the longest of a micro-batch. flash_attention_2: rows joined without
    padding, with the package flash-attn on CUDA, in a 16-bit precision."""
    micro_batch_tokens: int = 0
    """Most tokens of a micro-batch; 0 finds it from the free memory at the first start of the run."""
    limit_gb: float = 0.0
    """Memory of the training device that the learner may use, in GB (10⁹ bytes); 0 for all that is free."""

    def __post_init__(self) -> None:
        tokens, limit = self.micro_batch_tokens, self.limit_gb
        require("learner.memory.micro_batch_tokens", tokens, tokens >= 0, "0 or more")
        require("learner.memory.limit_gb", limit, 0.0 <= limit < float("inf"), "0 or more")
        if self.attention == "flash_attention_2" and self.precision == "fp32":
            raise ConfigError(
                'attention = "flash_attention_2" computes in 16 bits, and precision is "fp32"',
                remedy='Set precision = "bf16" or attention = "sdpa" in [learner.memory].',
            )
        if self.precision == "bf16_kahan" and self.optimizer_states == "8bit":
            raise ConfigError(
                'precision = "bf16_kahan" and optimizer_states = "8bit" exclude each other',
                remedy='Set precision = "bf16_stochastic" in [learner.memory].',
            )

    def precision_on(self, device_type: str, engine_dtype: str) -> Precision:
        """The precision on this kind of device, for a run that samples in `engine_dtype`.

        A run that samples in float32 is trained in float32: its log-probs are compared with the policy's.
        """
        if self.precision != "auto":
            return self.precision
        return "bf16" if device_type == "cuda" and engine_dtype != "float32" else "fp32"


def weight_dtype(precision: Precision) -> str:
    """Type in which the weights in training are held, a key of `TORCH_DTYPES`."""
    return "bfloat16" if precision in PURE_BF16 else "float32"
