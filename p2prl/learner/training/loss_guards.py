"""Optional guards around any loss: learning-rate brakes, token masks and a warning on a low effective sample size."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from p2prl.algorithms.guards import kl_brake, negative_tail_keep, second_moment_keep, spread, vcpo_factor
from p2prl.algorithms.ratios import Terms
from p2prl.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardConfig:
    """Settings of the guards. An unset guard is off."""

    kl_brake: float | None = None
    """δ, nats per token: the learning rate is scaled by min(1, √(δ/KL)). .05 is a start."""
    vcpo: bool = False
    """Scale the learning rate by √(ESS/n) of the whole-sequence ratios (VCPO)."""
    second_moment: float | None = None
    """τ, nats²: tokens of the largest squared log-ratio are dropped until its mean is at most this (M2PO; .04)."""
    negative_tail: float | None = None
    """δ, nats per token: negatives that the policy has abandoned by more than this are dropped (.5)."""
    mask_truncated: bool = False
    """Drop completions that were cut off at the token limit: no gradient comes from them, of the loss, a value head or
    a reference. Their rewards stay in the baseline of their group, and their tokens in every average."""
    ess_warning: float = 0.05
    """Warn when the effective sample size falls below this share of the batch (ESS/n, mean of recent updates); 0 never
    warns. In a small batch the threshold is one and a half completions, since one alone is 1/n of it."""

    def __post_init__(self) -> None:
        for name in ("kl_brake", "second_moment"):
            value = getattr(self, name)
            require(f"loss.guards.{name}", value, value is None or 0.0 < value < float("inf"), "above 0")
        tail = self.negative_tail
        require("loss.guards.negative_tail", tail, tail is None or 0.0 <= tail < float("inf"), "0 or more")
        require("loss.guards.ess_warning", self.ess_warning, 0.0 <= self.ess_warning <= 1.0, "within 0..1")

    def rate_factor(self, terms: Terms) -> float:
        """Factor on the learning rate, in (0, 1]. Depends on the batch alone, so a replay repeats it."""
        factor = 1.0
        if self.kl_brake is not None:
            kl = -terms.log_ratio_BGT.detach().sum() / terms.mask_BGT.sum()
            factor *= float(kl_brake(kl, target_kl=self.kl_brake))
        if self.vcpo:
            factor *= float(vcpo_factor(terms.sequence_BG))
        return factor

    def ess_threshold(self, completions: int) -> float:
        """ESS/n below which a batch of this many completions counts as collapsed."""
        return max(self.ess_warning, min(0.75, 1.5 / completions)) if self.ess_warning else 0.0

    def keep(self, terms: Terms) -> Tensor | None:
        """Factor 0 or 1 on each token, (B, G, T), for `RolloutBatch.guard_BGT`; None when no mask is set."""
        keeps: list[Tensor] = []
        if self.second_moment is not None:
            keeps.append(second_moment_keep(terms.log_ratio_BGT, terms.mask_BGT, budget=self.second_moment))
        if self.negative_tail is not None:
            keep_BG = negative_tail_keep(terms.geometric_BG, terms.advantages_BG, bound_nats=self.negative_tail)
            keeps.append(keep_BG)
        if not keeps:
            return None
        product = spread(keeps[0], terms.mask_BGT)
        for keep in keeps[1:]:
            product = product * spread(keep, terms.mask_BGT)
        return product


@dataclass(frozen=True, kw_only=True, slots=True)
class EssWatch:
    """Detector of a collapsed effective sample size: warns once, and again only after a recovery."""

    mean: float | None = None
    """Running mean of ESS/n; None before the first batch."""
    warned: bool = False

    def observe(self, ess_fraction: float, *, below: float) -> tuple[EssWatch, bool]:
        """The watch after one more batch, and whether to warn now. It recovers at twice `below`."""
        mean = ess_fraction if self.mean is None else self.mean + 0.1 * (ess_fraction - self.mean)
        if mean < below and not self.warned:
            return EssWatch(mean=mean, warned=True), True
        return EssWatch(mean=mean, warned=self.warned and mean < min(1.0, 2 * below)), False
