"""Groups without a learning signal, whose backward pass is left out: on a learned task most of the work is theirs.

Shape legend: M policies, B prompts, G completions, T tokens, P prompt tokens, W weights, N chosen
prompts.
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


def silent_groups(advantages_MBG: Tensor) -> Tensor:
    """Bool (M, B): groups whose advantages are all 0."""
    return (advantages_MBG == 0).all(dim=-1)


def logprobs_of(
    shape: DecoderShape, weights_MW: Tensor, prompts_MBP: Tensor, completions_MBGT: Tensor, silent_MB: Tensor
) -> Tensor:
    """Log-probs (M, B, G, T) as of `completion_logprobs`, with a gradient outside silent groups.

    The policies are computed side by side, so each has a gradient in as many groups as the one with the fewest silent
    ones; at least one, so that a gradient remains.
    """
    order_MB = torch.argsort(silent_MB.int(), dim=1, stable=True)
    heard = max(1, int((~silent_MB).sum(dim=1).max()))
    parts = list[Tensor]()
    for places_MN, needs_gradient in ((order_MB[:, :heard], True), (order_MB[:, heard:], False)):
        if places_MN.shape[1]:
            prompts, completions = (_taken(each, places_MN) for each in (prompts_MBP, completions_MBGT))
            with torch.set_grad_enabled(needs_gradient):
                parts.append(completion_logprobs(shape, weights_MW, prompts, completions))
    return _taken(torch.cat(parts, dim=1), torch.argsort(order_MB, dim=1))


def _taken(values: Tensor, places_MN: Tensor) -> Tensor:
    """The entries of dimension 1 at these places, of each policy its own."""
    return values[torch.arange(len(places_MN), device=values.device).unsqueeze(1), places_MN]
