"""Cards people lend, and predictions of how fast they sample and train, from their data sheets and measured figures.

A prediction of sampling is checked against one measured card (`docs/planning.md`); `p2prl bench machine` measures
yours. Pure arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import ConfigError
from p2prl.planning.measured_figures import training_share
from p2prl.planning.model_shapes import KnownModel

WORK_SHARE = 0.3
"""Memory besides the weights, as a share of them: keys and values of the completions in flight, and scratch."""

_LAYER_S = 0.11e-3
"""Seconds of a layer in a step of one token, whatever it computes: the card starts kernels one by one."""

_BANDWIDTH_SHARE, _DECODE_FLOPS_SHARE = 0.6, 0.4
"""Shares of the data sheet's bandwidth and operations that decoding reaches."""

_USABLE_SHARE = 0.9

MOST_SLOTS = 8
"""Groups at once of a predicted machine; more gain little and age."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A card as its maker's data sheet has it."""

    title: str
    memory_gb: float
    bandwidth_gb_s: float
    bf16_tflops: float
    """Dense products of bfloat16, summed in float32."""

    @property
    def peak_flops(self) -> float:
        """Operations a second."""
        return self.bf16_tflops * 1e12


def _card(title: str, memory_gb: float, bandwidth_gb_s: float, bf16_tflops: float) -> Card:
    return Card(title=title, memory_gb=memory_gb, bandwidth_gb_s=bandwidth_gb_s, bf16_tflops=bf16_tflops)


CARDS = {
    "rtx3060": _card("RTX 3060", 12, 360, 25.5),
    "rtx3090": _card("RTX 3090", 24, 936, 71),
    "rtx4060ti": _card("RTX 4060 Ti 16 GB", 16, 288, 44),
    "rtx4070": _card("RTX 4070", 12, 504, 58),
    "rtx4080": _card("RTX 4080", 16, 717, 97.5),
    "rtx4090": _card("RTX 4090", 24, 1008, 165),
    "rtx5090": _card("RTX 5090", 32, 1792, 209),
    "l4": _card("L4", 24, 300, 121),
    "l40s": _card("L40S", 48, 864, 362),
    "a100": _card("A100 80 GB", 80, 2039, 312),
    "h100": _card("H100 SXM", 80, 3350, 989),
    "h200": _card("H200", 141, 4800, 989),
}
"""By the name that a fleet's file takes."""


def card_named(name: str) -> Card:
    """A known card. `ConfigError` names those there are."""
    found = CARDS.get(name.lower().replace(" ", "").replace("-", ""))
    if found is None:
        raise ConfigError(
            f"no card is known as {name!r}",
            remedy=f"Choose one of {', '.join(CARDS)}, or give tokens_per_s, or measured = the file of"
            " p2prl bench machine --json.",
        )
    return found


def sampling_bytes(model: KnownModel) -> float:
    """Memory that sampling takes in 16 bits."""
    return 2 * model.parameters * (1 + WORK_SHARE)


def slots_that_fit(card: Card, model: KnownModel, *, row_tokens: int, group_size: int) -> int:
    """Groups at once whose keys and values fit beside the weights, up to `MOST_SLOTS`; 0 if the model does not fit."""
    if sampling_bytes(model) > card.memory_gb * 1e9:
        return 0
    left = card.memory_gb * 1e9 * _USABLE_SHARE - 2 * model.parameters
    return min(MOST_SLOTS, max(1, int(left / (group_size * row_tokens * model.kv_bytes_per_token))))


def decode_step_s(card: Card, model: KnownModel, *, batch: int, context: float) -> float:
    """Seconds in which each of `batch` completions with `context` tokens gets its next token."""
    read = 2 * model.parameters + batch * context * model.kv_bytes_per_token
    computed = batch * 2 * model.parameters
    return (
        _LAYER_S * model.shape.layers
        + read / (card.bandwidth_gb_s * 1e9 * _BANDWIDTH_SHARE)
        + computed / (card.peak_flops * _DECODE_FLOPS_SHARE)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSpeed:
    """Seconds of a learner's work on one card."""

    token_s: float
    """One token of training."""
    replay_token_s: float
    """One token of a replay, which is a forward pass: a third of training."""
    share: float
    """Of the card's peak that is reached."""


def training_speed(card: Card, model: KnownModel) -> TrainingSpeed:
    """Training and replay on a card, at the share of its peak that an H100 reached with models of this size."""
    share = training_share(model.parameters, CARDS["h100"].peak_flops)
    token_s = 6 * model.parameters / (card.peak_flops * share)
    return TrainingSpeed(token_s=token_s, replay_token_s=token_s / 3, share=share)
