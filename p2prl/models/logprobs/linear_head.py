"""Find the output layer of a causal language model, if the model's logits are that layer's output and nothing else.

Replay and training then compute logits in parts from the last hidden states. Soft caps, scales and masks before or
after the layer are found by a known answer, whatever the weights: logits of a wide spread are planted as the layer's
output, and must come out of the model unchanged; the layer's input must be the hidden states of the base model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_PROBE_TOKENS = 8
"""Positions of the known-answer comparison."""

_PROBE_SPREAD = 50.0
"""Scale of the logits it plants. Real logits reach some tens, where a soft cap bends them visibly."""


def find_linear_head(model: Any) -> nn.Linear | None:
    """The output layer of a Hugging Face causal LM, or None when its logits are more than a linear layer's output."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or model.base_model is model:
        return None
    return head if _is_plain(model, head) else None


def _is_plain(model: Any, head: nn.Linear) -> bool:
    device = head.weight.device
    tokens = (torch.arange(_PROBE_TOKENS, device=device) % head.out_features)[None]
    wave = torch.arange(_PROBE_TOKENS * head.out_features, device=device, dtype=torch.float32)
    planted = (_PROBE_SPREAD * torch.sin(wave)).reshape(1, _PROBE_TOKENS, -1).to(head.weight.dtype)
    inputs: list[Tensor] = []

    def plant(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        inputs.append(arguments[0])
        return planted[:, -output.shape[1] :]

    with torch.no_grad():
        hidden = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        hook = head.register_forward_hook(plant)
        try:
            logits = model(input_ids=tokens, use_cache=False).logits
        finally:
            hook.remove()
    return len(inputs) == 1 and torch.equal(inputs[0], hidden) and torch.equal(logits, planted)
