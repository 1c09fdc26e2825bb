"""Taper on negatives: stop pushing down completions that the policy no longer samples.

Plain GEPO drifts 2-3 times further from the sampler than GSPO because nothing stops such negatives; the taper
closes that gap. Shape legend: B groups, G completions, T tokens; 1 broadcasts over T.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from p2prl.algorithms.config_checks import require_choice
from p2prl.algorithms.ratios import Terms

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
