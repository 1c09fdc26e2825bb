"""Random rollout batches for the tests of the losses."""

from __future__ import annotations

import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch


def random_batch(
    seed: int, *, spread: float = 0.5, shape: tuple[int, int, int] = (3, 4, 6)
) -> tuple[Tensor, RolloutBatch]:
    """Policy log-probs and a ragged batch in float64; `spread` nats is the deviation of a token's log-ratio."""
    g = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    behavior = -torch.rand(shape, generator=g, dtype=torch.float64) * 2 - 0.02
    policy = (behavior + spread * normal()).clamp(max=-1e-3)
    mask = torch.rand(shape, generator=g) < 0.7
    mask[..., 0] |= ~mask.any(dim=-1)
    rewards = torch.rand(shape[:2], generator=g, dtype=torch.float64)
    batch = RolloutBatch(
        behavior_logprobs_BGT=behavior,
        mask_BGT=mask,
        advantages_BG=rewards - rewards.mean(dim=-1, keepdim=True),
        staleness_BG=torch.randint(0, 70, shape[:2], generator=g),
        proximal_logprobs_BGT=(behavior + 0.2 * normal()).clamp(max=-1e-3),
        reference_logprobs_BGT=(behavior + 0.2 * normal()).clamp(max=-1e-3),
    )
    return policy.requires_grad_(), batch
