"""Norm of each completion's score, ‖∇ log p‖ by all weights of its policy, for VCPO's off-policy optimal baseline.

Shape legend: B prompts, G completions, N = B·G, P prompt tokens, T completion tokens, W weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from p2prl_lab.bench.training.decoder_shape import DecoderShape
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs


def score_norms(
    shape: DecoderShape, weights_W: Tensor, prompts_BP: Tensor, completions_BGT: Tensor, mask_BGT: Tensor
) -> Tensor:
    """Norms (B, G) of the gradients of Σ_t log p over each completion's tokens, exactly.

    Every completion gets its own copy of the weights, so that one backward pass gives every gradient: 128 copies of a
    policy of 59,040 weights are 30 MB.
    """
    groups, size, tokens = completions_BGT.shape
    copies_NW = weights_W.detach().expand(groups * size, -1).clone().requires_grad_()
    prompts_N1P = prompts_BP.repeat_interleave(size, dim=0).unsqueeze(1)
    logprobs = completion_logprobs(shape, copies_NW, prompts_N1P, completions_BGT.reshape(-1, 1, 1, tokens))
    total = torch.where(mask_BGT.reshape(logprobs.shape), logprobs, 0.0).sum()
    (scores_NW,) = torch.autograd.grad(total, copies_NW)
    norms_N: Tensor = torch.linalg.vector_norm(scores_NW, dim=1)
    return norms_N.view(groups, size)
