"""Input and output of a loss: rollouts of B groups as padded tensors, and the scalar with its metrics.

Shape legend: B groups (one prompt each), G completions of a group, T tokens of the longest completion, N completions
of the complete update. A name ends in its shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.errors import LocalProtocolError

LOGPROB_CEILING = 1e-2
"""Nats. A log-probability above zero is impossible, but an engine in half precision may round one slightly above it."""


@dataclass(frozen=True, kw_only=True)
class RolloutBatch:
    """Rollouts of B groups: all inputs of a loss except the log-probs of the policy being trained.

    Construction checks shapes and values and raises LocalProtocolError naming the field. What peers send is checked
    before it becomes a batch, so a fault here is the trainer's own. Each loss reads the few fields it needs.
    """

    behavior_logprobs_BGT: Tensor
    """Nats, at the sampling temperature: of each token under the sampler's policy. Not read off the mask."""
    mask_BGT: Tensor
    """Bool, or 0 and 1: true on completion tokens. Every completion needs at least one."""
    advantages_BG: Tensor
    """Advantage of each completion, in reward units (or in standard deviations where normalized so)."""
    token_advantages_BGT: Tensor | None = None
    """Advantage of each token, from step rewards (`step_credit`) or a value head (`ppo.gae`), for losses that take them
    (`LossSpec.token_advantages`); None spreads `advantages_BG` over the tokens."""
    staleness_BG: Tensor | None = None
    """Updates: learner version minus rollout version, at least 0."""
    proximal_logprobs_BGT: Tensor | None = None
    """Nats: the policy at the start of this update, for `decoupled_ppo`; None stands for the policy itself."""
    reference_logprobs_BGT: Tensor | None = None
    """Nats: the reference policy, for `dpo` and the reference penalty."""
    group_log_expectation_B: Tensor | None = None
    """Nats: log Ê of each complete group (`ratios.group_log_expectation`); None: computed from this batch."""
    update_lengths_N: Tensor | None = None
    """Tokens: lengths of all completions of the update where this batch is a part of it, so that parts add up."""
    guard_BGT: Tensor | None = None
    """Factor in [0, 1] on each token's loss, from `guards`; 0 drops the token and leaves every normalizer alone."""
    weight_cap_BG: Tensor | None = None
    """Largest effective weight of a completion (`guards.trust_caps`); None uses only the loss's own bound."""
    whole_groups: bool = True
    """False when the completions of a group are split over parts, which losses that couple completions reject."""

    def __post_init__(self) -> None:
        shape = self.mask_BGT.shape
        if len(shape) != 3 or 0 in shape:
            raise LocalProtocolError(f"mask_BGT must have three non-empty dimensions, not {tuple(shape)}")
        for field, expected in self.tensor_shapes().items():
            value = getattr(self, field)
            if value is not None and tuple(value.shape) != expected:
                raise LocalProtocolError(f"{field} has shape {tuple(value.shape)}, expected {expected}")
        mask_BGT = self.mask_BGT.bool()
        if not bool(mask_BGT.any(dim=-1).all()):
            raise LocalProtocolError("mask_BGT is empty for at least one completion")
        for field in ("behavior_logprobs_BGT", "proximal_logprobs_BGT", "reference_logprobs_BGT"):
            value = getattr(self, field)
            if value is not None:
                check_logprobs(field, value, mask_BGT)
        for field in ("advantages_BG", "group_log_expectation_B"):
            value = getattr(self, field)
            if value is not None and not bool(torch.isfinite(value).all()):
                raise LocalProtocolError(f"{field} holds NaN or infinity")
        if self.token_advantages_BGT is not None and not bool(
            torch.isfinite(self.token_advantages_BGT[mask_BGT]).all()
        ):
            raise LocalProtocolError("token_advantages_BGT holds NaN or infinity on the mask")
        if self.staleness_BG is not None and not bool((self.staleness_BG >= 0).all()):
            raise LocalProtocolError("staleness_BG is negative: a rollout claims a version the learner has not reached")
        self._check_guards(mask_BGT)

    def _check_guards(self, mask_BGT: Tensor) -> None:
        if self.guard_BGT is not None:
            guard = self.guard_BGT[mask_BGT]
            if not bool(((guard >= 0) & (guard <= 1)).all()):
                raise LocalProtocolError("guard_BGT must lie in [0, 1] on the mask")
        if self.weight_cap_BG is not None and not bool((self.weight_cap_BG >= 0).all()):
            raise LocalProtocolError("weight_cap_BG must be at least 0")
        if self.update_lengths_N is not None:
            if self.update_lengths_N.dim() != 1 or not bool((self.update_lengths_N > 0).all()):
                raise LocalProtocolError("update_lengths_N must be one-dimensional and positive")
            if self.update_lengths_N.numel() < mask_BGT.shape[0] * mask_BGT.shape[1]:
                raise LocalProtocolError("update_lengths_N covers fewer completions than this part of the update")

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape each field must have, except `mask_BGT` (which sets them) and `update_lengths_N`."""
        groups, completions, tokens = self.mask_BGT.shape
        per_token = (groups, completions, tokens)
        return {
            "behavior_logprobs_BGT": per_token,
            "advantages_BG": (groups, completions),
            "token_advantages_BGT": per_token,
            "staleness_BG": (groups, completions),
            "proximal_logprobs_BGT": per_token,
            "reference_logprobs_BGT": per_token,
            "group_log_expectation_B": (groups,),
            "guard_BGT": per_token,
            "weight_cap_BG": (groups, completions),
        }


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """Result of a loss."""

    loss: Tensor
    """Scalar to minimize; of the dtype of the policy's log-probs."""
    metrics: Mapping[str, Tensor]
    """Detached scalars; each name is defined in `surrogates.summarize` or in the loss's docstring."""
    weights_BGT: Tensor
    """Detached. Factor on advantage × ∇ log-prob of each token before aggregation; 0 off the mask."""
    bounded_BGT: Tensor
    """Bool: a clip, cap, taper or mask changed this token's weight."""


def check_logprobs(field: str, logprobs: Tensor, mask_BGT: Tensor) -> None:
    """Raise LocalProtocolError unless `logprobs` are finite and at most zero (to rounding) wherever the mask is on.

    Half precision is refused: a log-prob of −2 is rounded by up to .008 nats in bfloat16, which moves ratios across
    clips and masks. Gradients were up to 13 % off, whatever precision came after the rounding.
    """
    if logprobs.dtype not in (torch.float32, torch.float64):
        name = str(logprobs.dtype).removeprefix("torch.")
        raise LocalProtocolError(f"{field} is {name}: take the log-softmax in float32, a later conversion is too late")
    if logprobs.shape != mask_BGT.shape:
        raise LocalProtocolError(f"{field} has shape {tuple(logprobs.shape)}, expected {tuple(mask_BGT.shape)}")
    seen = logprobs.detach()[mask_BGT]
    if bool((torch.isfinite(seen) & (seen <= LOGPROB_CEILING)).all()):
        return
    if bool(torch.isnan(seen).any()):
        raise LocalProtocolError(f"{field} holds NaN on the mask")
    if bool(torch.isinf(seen).any()):
        raise LocalProtocolError(f"{field} holds an infinity on the mask: a sampled token cannot have probability zero")
    raise LocalProtocolError(f"{field} holds a log-probability above zero on the mask")
