"""Groups without a learning signal, whose backward pass is left out: on a learned task most of the work is theirs.

Shape legend: B prompts, G completions, T tokens, P prompt tokens, W weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.objective import Objective
from p2prl_lab.bench.training.decoder_shape import DecoderShape
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs


def pulls(objective: Objective) -> bool:
    """Whether a loss moves a policy by completions of advantage 0, as one with a penalty does."""
    logprobs = torch.tensor([[[-0.5, -1.0], [-2.0, -0.3]]], dtype=torch.float64, requires_grad=True)
    batch = RolloutBatch(
        behavior_logprobs_BGT=torch.tensor([[[-0.9, -0.4], [-0.7, -1.5]]], dtype=torch.float64),
        mask_BGT=torch.ones(1, 2, 2, dtype=torch.bool),
        advantages_BG=torch.zeros(1, 2, dtype=torch.float64),
        staleness_BG=torch.ones(1, 2, dtype=torch.int64),
    )
    (gradient,) = torch.autograd.grad(objective.loss(logprobs, batch).loss, logprobs)
    return bool(gradient.any())


def silent_groups(advantages_BG: Tensor) -> Tensor:
    """Bool (B,): groups whose advantages are all 0; never all groups, so that a gradient remains."""
    silent_B = (advantages_BG == 0).all(dim=-1)
    if bool(silent_B.all()):
        silent_B[0] = False
    return silent_B


def logprobs_of(
    shape: DecoderShape, weights_1W: Tensor, prompts_1BP: Tensor, completions_1BGT: Tensor, silent_B: Tensor
) -> Tensor:
    """Log-probs (1, B, G, T) as of `completion_logprobs`, of one policy, with a gradient only outside silent groups."""
    parts = list[Tensor]()
    for places, needs_gradient in ((torch.nonzero(~silent_B)[:, 0], True), (torch.nonzero(silent_B)[:, 0], False)):
        if len(places):
            with torch.set_grad_enabled(needs_gradient):
                parts.append(
                    completion_logprobs(shape, weights_1W, prompts_1BP[:, places], completions_1BGT[:, places])
                )
    order = torch.argsort(silent_B.int(), stable=True)
    return torch.cat(parts, dim=1)[:, torch.argsort(order)]
