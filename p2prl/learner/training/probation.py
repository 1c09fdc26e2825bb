"""Probation: tighter bounds on the groups of peers whose work has not been trained on yet.

The log-probs used in training are always the learner's own, from replaying the group at the version it declares. A
volunteer's claims are compared with them and never trained on. But replay has a tolerance, which is wide for an engine
that computes in 16 bits. So a run may apply tighter bounds to groups of unknown peers, or train on them with a loss
that does not read the sampler's log-probs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.guards import group_deflation_keep, trust_caps
from p2prl.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbationConfig:
    """Probation rule. A peer is on probation until enough of its groups have been trained on."""

    probation_groups: int = 0
    """Groups of a peer that must have been trained on before it is trusted; 0 trusts everybody from the first group."""
    loss: str = ""
    """A loss that does not read the sampler's log-probs (`asympo`, `asymre`) for groups of peers on probation; empty:
    the run's own loss, within the bounds below."""
    cap: float = 1.0
    """Largest weight of a completion of a peer without history; rises to `trusted_cap` as its groups are trained on."""
    trusted_cap: float = 2.0
    """Cap at the end of probation. A trusted peer's weights are bounded by the loss alone."""
    max_rise_nats: float = 0.5
    """A group on probation is dropped when mean(log p − log q) per token is above this, a sign of deflated claims."""
    max_fall_nats: float = 3.0
    """The same, when that mean is below minus this."""

    def __post_init__(self) -> None:
        require("loss.trust.probation_groups", self.probation_groups, self.probation_groups >= 0, "0 or more")
        require("loss.trust.cap", self.cap, 0.0 <= self.cap <= self.trusted_cap, "within 0..trusted_cap")
        require("loss.trust.trusted_cap", self.trusted_cap, 0.0 < self.trusted_cap < float("inf"), "above 0")
        for name in ("max_rise_nats", "max_fall_nats"):
            value = getattr(self, name)
            require(f"loss.trust.{name}", value, 0.0 <= value < float("inf"), "0 or more")

    def trust(self, groups_before: int) -> float:
        """Trust of a peer, 0 to 1, after `groups_before` of its groups were trained on."""
        return 1.0 if groups_before >= self.probation_groups else groups_before / self.probation_groups

    def caps(self, trust_B: Tensor, completions: int) -> Tensor:
        """Largest weights (B, G) for `RolloutBatch.weight_cap_BG`; infinite for trusted peers."""
        cap_B = trust_caps(trust_B, unverified_cap=self.cap, verified_cap=self.trusted_cap)
        cap_B = torch.where(trust_B < 1.0, cap_B, torch.inf)
        return cap_B.unsqueeze(-1).expand(-1, completions)

    def keep(self, policy_logprobs_BGT: Tensor, batch: RolloutBatch, trust_B: Tensor) -> Tensor:
        """Keep-mask (B,): false for groups on probation whose mean log-ratio is out of bounds."""
        within_B = group_deflation_keep(
            policy_logprobs_BGT, batch, max_rise_nats=self.max_rise_nats, max_fall_nats=self.max_fall_nats
        )
        return within_B | (trust_B >= 1.0)
