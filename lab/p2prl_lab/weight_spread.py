"""Spread of the weights of stale completions, by length: ratios per token against ratios of whole completions.

    python -m p2prl_lab.weight_spread

Prints a Markdown table. Token log-ratios are drawn with KL(q‖p) of --kl nats a token: normal, mean −kl, variance 2·kl,
so that e^ℓ has mean 1. The losses themselves give the weights, of failures, in groups of 8 whose completions are all
equally likely to the sampler; so what spreads is the delay alone.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import build_loss

LENGTHS = (8, 32, 128, 193, 512, 2048)
LOSSES = ("gepo", "gspo", "tis", "topr", "gex", "minpro")
GROUPS, SIZE, CHANCE = 64, 8, -2.0
"""Groups of completions, completions of a group, and a token's log-prob under the sampler, nats."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kl", type=float, default=0.01, help="nats a token")
    kl = parser.parse_args().kl
    print(f"| tokens | {' | '.join(LOSSES)} |\n|---|{'---|' * len(LOSSES)}")
    for length in LENGTHS:
        cells = (f"{low:.2f} … {high:.2f}" for low, high in (spread(loss, length, kl) for loss in LOSSES))
        print(f"| {length} | {' | '.join(cells)} |")


def spread(loss: str, length: int, kl: float, *, seed: int = 0) -> tuple[float, float]:
    """The 5 and 95 % quantiles of the mean weight of a completion under a loss at its own settings."""
    behavior = torch.full((GROUPS, SIZE, length), CHANCE, dtype=torch.float64)
    noise = torch.randn(behavior.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    # No log-prob is above zero; up to .2 nats a token none of these ratios comes near.
    policy = (behavior - kl + (2 * kl) ** 0.5 * noise).clamp(max=0.0)
    batch = RolloutBatch(
        behavior_logprobs_BGT=behavior,
        mask_BGT=torch.ones_like(behavior, dtype=torch.bool),
        advantages_BG=torch.full((GROUPS, SIZE), -1.0, dtype=torch.float64),
    )
    weights: Tensor = build_loss(loss).loss(policy, batch).weights_BGT.mean(dim=-1).flatten()
    low, high = torch.quantile(weights, torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist()
    return low, high


if __name__ == "__main__":
    main()
