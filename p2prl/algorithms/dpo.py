"""DPO on pairs taken from groups: the best against the worst completions of one prompt.

Shape legend: B groups, G completions, T tokens; GG pairs (better, worse) of one group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.advantages import ZERO_VARIANCE_RANGE
from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.gepo import require_whole_groups
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import computing, masked_mean, on_mask, terms_of
from p2prl.algorithms.value_checks import require_positive


@dataclass(frozen=True, kw_only=True)
class DpoConfig:
    """Strength of the preference."""

    beta: float = 0.1
    """β > 0, per nat: with a larger β a pair counts as learned sooner."""

    def __post_init__(self) -> None:
        require_positive("beta", self.beta)


def dpo(
    policy_logprobs_BGT: Tensor,
    batch: RolloutBatch,
    cfg: DpoConfig,
    aggregation: AggregationConfig,  # noqa: ARG001 (every loss has one signature; the registry allows the default only)
) -> LossOutput:
    """DPO (arXiv 2305.18290 §4): −log σ(β (h_best − h_worst)), h = Σ_t(log p − log ref), averaged over groups.

    Pairs are all of a group's best with all of its worst by advantage, averaged within the group, so ties do not make
    the result depend on order. Zero-variance groups have no pair: no gradient, counted in zero_advantage_groups, and
    still part of the mean. Without reference log-probs the sampler's policy is the reference. A pair is scaled by its
    members' mean guard; `weight_cap_BG` has no meaning here. `weights_BGT` holds the push on each token's log-prob of
    a better or worse completion. Metrics: pair_accuracy (share of pairs with h_best > h_worst), pairs (groups that
    have any), and as everywhere weight_mean, weight_max, weight_variance, bounded_fraction, kl_k1. Shapes (B, G, T).
    Raises LocalProtocolError (see `terms_of`), also where a batch splits groups.
    """
    require_whole_groups(batch, "dpo")
    terms = terms_of(policy_logprobs_BGT, batch)
    reference_BGT = terms.behavior_BGT
    if batch.reference_logprobs_BGT is not None:
        reference_BGT = on_mask(batch.reference_logprobs_BGT.detach().to(reference_BGT.dtype), terms.mask_BGT)
    gain_BG = (terms.policy_BGT - reference_BGT).sum(dim=-1)
    pair_share_BGG = _pair_shares(terms.advantages_BG)
    if batch.guard_BGT is not None:
        guard_BG = masked_mean(computing(batch.guard_BGT.detach()), terms.mask_BGT).to(gain_BG.dtype)
        pair_share_BGG = pair_share_BGG * guard_BG.unsqueeze(-1) * guard_BG.unsqueeze(-2)
    margin_BGG = gain_BG.unsqueeze(-1) - gain_BG.unsqueeze(-2)
    groups = _groups_of_update(batch)
    loss = -(pair_share_BGG * torch.nn.functional.logsigmoid(cfg.beta * margin_BGG)).sum() / groups
    push_BGG = pair_share_BGG * cfg.beta * torch.sigmoid(-cfg.beta * margin_BGG.detach())
    weights_BG1 = (push_BGG.sum(dim=-1) + push_BGG.sum(dim=-2)).unsqueeze(-1)
    weights_BGT = on_mask(weights_BG1.expand(terms.mask_BGT.shape), terms.mask_BGT)
    tokens = terms.lengths_BG.sum()
    mean = weights_BGT.sum() / tokens
    pairs = pair_share_BGG > 0
    metrics = {
        "weight_mean": mean,
        "weight_max": weights_BGT.max(),
        "weight_variance": on_mask((weights_BGT - mean).square(), terms.mask_BGT).sum() / tokens,
        "bounded_fraction": torch.zeros_like(mean),
        "kl_k1": -terms.sequence_BG.detach().sum() / tokens,
        "zero_advantage_groups": (~pairs.flatten(1).any(dim=-1)).sum(),
        "pair_accuracy": (pairs & (margin_BGG.detach() > 0)).sum() / pairs.sum().clamp(min=1),
        "pairs": pairs.flatten(1).any(dim=-1).sum(),
    }
    bounded_BGT = torch.zeros_like(terms.mask_BGT)
    return LossOutput(loss=loss, metrics=metrics, weights_BGT=weights_BGT, bounded_BGT=bounded_BGT)


def _pair_shares(advantages_BG: Tensor) -> Tensor:
    """Weight of pair (i better, j worse), summing to 1 over each group that has pairs and 0 over one that has none."""
    highest_B1, lowest_B1 = advantages_BG.amax(-1, keepdim=True), advantages_BG.amin(-1, keepdim=True)
    differ_B1 = (highest_B1 - lowest_B1) > ZERO_VARIANCE_RANGE
    best_BG = (advantages_BG == highest_B1) & differ_B1
    worst_BG = (advantages_BG == lowest_B1) & differ_B1
    pairs_BGG = (best_BG.unsqueeze(-1) & worst_BG.unsqueeze(-2)).to(advantages_BG.dtype)
    return pairs_BGG / pairs_BGG.sum(dim=(-2, -1), keepdim=True).clamp(min=1)


def _groups_of_update(batch: RolloutBatch) -> float:
    """Groups of the whole update, so that parts add up."""
    groups, completions, _ = batch.mask_BGT.shape
    return groups if batch.update_lengths_N is None else batch.update_lengths_N.numel() / completions


DPO = LossSpec(
    name="dpo", function=dpo, config_type=DpoConfig, aggregations=frozenset({"seq_mean"}), needs_whole_groups=True
)
