"""Forward pass of the policy for training: log-probs of given completions, with gradient.

Shapes: N completions, P the longest prompt, T the longest completion, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from p2prl.errors import LocalProtocolError

TokenIds = Sequence[int] | npt.NDArray[np.uint32]
"""Token ids of a prompt or a completion."""


def completion_logprobs(
    model: nn.Module,
    prompt_ids: Sequence[TokenIds],
    completion_ids: Sequence[TokenIds],
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Log-probs of completions given their prompts, at the sampling temperature.

    `model` is a Hugging Face causal LM; `prompt_ids` and `completion_ids` hold N rows each, none empty. Returns
    `policy_logprobs` (N, T) float32, zero where masked, and `mask` (N, T) float32, 1 on a completion's tokens. Agrees
    with an engine's log-probs up to rounding. `LocalProtocolError` when the rows do not match.
    """
    rows = list(zip(prompt_ids, completion_ids, strict=False))
    if not rows or len(prompt_ids) != len(completion_ids) or any(not len(p) or not len(c) for p, c in rows):
        raise LocalProtocolError("there must be one completion for each prompt, and none may be empty")
    device = next(model.parameters()).device
    # Pad on the right: a causal model never attends there, so no attention mask is needed and the fastest attention
    # kernel can be used.
    input_ids_NL = pad_right([joined(prompt, completion) for prompt, completion in rows], device)
    first = min(len(prompt) for prompt in prompt_ids) - 1
    kept = input_ids_NL.shape[1] - first
    logits_NKV = model(input_ids=input_ids_NL, use_cache=False, logits_to_keep=kept).logits
    lengths_N = torch.tensor([len(completion) for completion in completion_ids], device=device)
    starts_N = torch.tensor([len(prompt) - 1 - first for prompt in prompt_ids], device=device)
    steps_T = torch.arange(int(lengths_N.max()), device=device)
    mask_NT = steps_T < lengths_N[:, None]
    # Use index 0 after the end of a row: any legal index works, because the mask covers it.
    where_NT = torch.where(mask_NT, starts_N[:, None] + steps_T, 0)
    if bool((starts_N > 0).any()):
        logits_NTV = logits_NKV.gather(1, where_NT[:, :, None].expand(-1, -1, logits_NKV.shape[-1]))
    else:
        logits_NTV = logits_NKV[:, : len(steps_T)]
    tokens_NT = input_ids_NL[:, first + 1 :].gather(1, where_NT)
    logprobs_NTV = torch.log_softmax(logits_NTV.float() / temperature, dim=-1)
    picked_NT = logprobs_NTV.gather(2, tokens_NT[:, :, None])[:, :, 0]
    return torch.where(mask_NT, picked_NT, 0.0), mask_NT.float()


def joined(prompt: TokenIds, completion: TokenIds) -> npt.NDArray[np.int64]:
    """A prompt and its completion as one row."""
    return np.concatenate([np.asarray(prompt, dtype=np.int64), np.asarray(completion, dtype=np.int64)])


def pad_right(rows: Sequence[Sequence[int] | npt.NDArray[np.int64]], device: torch.device) -> Tensor:
    """Rows of token ids as one (N, longest) int64 tensor, short rows padded with token 0."""
    padded = np.zeros((len(rows), max(len(row) for row in rows)), dtype=np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return torch.from_numpy(padded).to(device)
