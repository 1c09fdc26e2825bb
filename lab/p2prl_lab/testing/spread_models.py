"""Random models that round like trained ones: every matrix keeps the size of what it multiplies, and logits are spread.

transformers' own random weights give logits of nearly one value. Larger matrices would spread them too, and multiply
the rounding of every layer: any engine in bfloat16 then differs from any other in half of its tokens.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import AutoModelForCausalLM

SPREAD = 5.0
"""Standard deviation of the logits."""


def spread_model(config: Any, *, seed: int) -> Any:
    """A model of gain 1 in float32 on the CPU, whose logits depend on the whole context."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter is not embedding and parameter is not head:
                parameter.mul_(1.0 / (float(parameter.std()) * math.sqrt(parameter.shape[1])))
        # A tied embedding stays small beside what the layers add, or the head would give every token back.
        head.mul_(SPREAD / (float(head.std()) * math.sqrt(head.shape[1])))
    return model
