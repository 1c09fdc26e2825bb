"""GEPO-T and gex: GEPO's weight without a PPO clip, with the negatives tapered.

Plain GEPO drifts 2-3 times further from the sampler than GSPO because nothing stops such negatives; the taper
closes that gap. Shape legend: B groups, G completions, T tokens; 1 broadcasts over T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.gepo import require_whole_groups
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import Terms, effective_sample_size, log_expectation_of, terms_of
from p2prl.algorithms.surrogates import over_nll, weighted_logprob
from p2prl.algorithms.value_checks import require_between, require_choice, require_positive

Taper = Literal["sequence", "geometric", "token"]
"""sequence: bound e^{Σℓ}, exact but a near-binary gate at hundreds of tokens; geometric: e^{mean ℓ}, length-free;
token: e^{ℓ_t}, for each token separately."""


def require_taper(field: str, value: str) -> None:
    """Raise ConfigError unless `value` is a taper."""
    require_choice(field, value, get_args(Taper))


def taper_negatives(log_weights_BG: Tensor, terms: Terms, taper: Taper) -> tuple[Tensor, Tensor]:
    """log min(w, 1, e^{ratio}) where A < 0, log w elsewhere: (log-weights, changed bool), (B, G, 1) or (B, G, T)."""
    match taper:
        case "sequence":
            log_bound = terms.sequence_BG.unsqueeze(-1)
        case "geometric":
            log_bound = terms.geometric_BG.unsqueeze(-1)
        case "token":
            log_bound = terms.log_ratio_BGT
    log_bound = log_bound.detach().clamp(max=0.0)
    log_weights = log_weights_BG.detach().unsqueeze(-1)
    tapered = (terms.advantages_BGT < 0) & (log_bound < log_weights)
    return torch.where(tapered, log_bound, log_weights), tapered


@dataclass(frozen=True, kw_only=True)
class GepoTConfig:
    """Cap and taper of the weight P/Ê."""

    cap: float = 2.0
    """Largest weight, > 0: upper bound for every completion at any staleness."""
    taper: Taper = "sequence"
    """Bound on the weight of a negative: see `Taper`."""
    negatives: float = 1.0
    """ν in [0, 1]: factor on the weight of every negative after the taper. Below 1, successes count more than failures,
    and the policy stays closer to its samplers."""
    sharpness: float = 0.0
    """κ in [0, 1]: every weight is divided by max(NLL, nll_floor)^κ after cap and taper, see `over_nll`. Weights then
    exceed the cap."""
    nll_floor: float = 0.01
    """Nats per token, > 0: smallest NLL to divide by. No effect without sharpness."""

    def __post_init__(self) -> None:
        require_positive("cap", self.cap)
        require_taper("taper", self.taper)
        require_between("negatives", self.negatives, 0.0, 1.0)
        require_between("sharpness", self.sharpness, 0.0, 1.0)
        require_positive("nll_floor", self.nll_floor)


@dataclass(frozen=True, kw_only=True)
class GexConfig(GepoTConfig):
    """Cap and taper of gex; the fields are those of GEPO-T."""


def gepo_t(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GepoTConfig, aggregation: AggregationConfig
) -> LossOutput:
    """GEPO-T: −sg(w) A log p with w = min(P/Ê, cap), and for A < 0: w ← ν min(w, 1, e^{Σℓ}) (or the chosen taper).

    This project's own loss; with seq_mean it is −mean_i sg(w_i) A_i LP_i. Needs no clip, no
    extra forward pass and no staleness label; weights never exceed the cap while sharpness is 0. Metric
    tapered_fraction: share of tokens whose weight the taper lowered. Shapes (B, G, T); nats. Raises LocalProtocolError
    (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    log_weight_BG = terms.policy_mean_BG.detach() - log_expectation_of(terms, batch)
    return _capped_and_tapered(log_weight_BG, terms, batch, cfg, aggregation, {})


def gex(policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GexConfig, aggregation: AggregationConfig) -> LossOutput:
    """gex: GEPO-T's form with log w = λ Σℓ + (1−λ)(LP − log Ê), λ = (ESS − 1)/(G − 1) of the group's e^{Σℓ}.

    This project's own loss: on policy λ = 1 and w = 1, which is unbiased REINFORCE; far off policy λ → 0, which is
    GEPO-T. G = 1 takes λ = 0 (then Ê = Q and w is GSPO's). At hundreds of tokens Σℓ is so large that λ Σℓ can silence
    positives even at small λ: prefer GEPO-T there. Metrics: mixing (mean λ), tapered_fraction. Shapes (B, G, T); nats.
    Raises LocalProtocolError (see `terms_of`), also where a batch splits groups, because λ needs all of one.
    """
    require_whole_groups(batch, "gex")
    terms = terms_of(policy_logprobs_BGT, batch)
    size = terms.sequence_BG.shape[-1]
    sequence_BG = terms.sequence_BG.detach()
    if size > 1:
        mixing_B1 = ((effective_sample_size(sequence_BG) - 1) / (size - 1)).clamp(0.0, 1.0).unsqueeze(-1)
    else:
        mixing_B1 = torch.zeros_like(sequence_BG)
    gepo_BG = terms.policy_mean_BG.detach() - log_expectation_of(terms, batch)
    log_weight_BG = mixing_B1 * sequence_BG + (1 - mixing_B1) * gepo_BG
    return _capped_and_tapered(log_weight_BG, terms, batch, cfg, aggregation, {"mixing": mixing_B1.mean()})


def _capped_and_tapered(
    log_weight_BG: Tensor,
    terms: Terms,
    batch: RolloutBatch,
    cfg: GepoTConfig,
    aggregation: AggregationConfig,
    extra_metrics: dict[str, Tensor],
) -> LossOutput:
    log_cap = math.log(cfg.cap)
    capped_BG1 = (log_weight_BG > log_cap).unsqueeze(-1)
    log_weights, tapered = taper_negatives(log_weight_BG.clamp(max=log_cap), terms, cfg.taper)
    tapered_BGT = tapered.expand(terms.mask_BGT.shape) & terms.mask_BGT
    extra_metrics["tapered_fraction"] = tapered_BGT.sum() / terms.lengths_BG.sum()
    weights = torch.where(terms.advantages_BGT < 0, cfg.negatives * log_weights.exp(), log_weights.exp())
    weights = over_nll(weights, terms, power=cfg.sharpness, floor=cfg.nll_floor)
    return weighted_logprob(weights, capped_BG1 | tapered, terms, batch, aggregation, extra_metrics)


GEPO_T = LossSpec(name="gepo_t", function=gepo_t, config_type=GepoTConfig, token_advantages=True)
GEX = LossSpec(name="gex", function=gex, config_type=GexConfig, needs_whole_groups=True, token_advantages=True)
