"""Cost of a swap's parts, each alone: writing the words that change, or copying all weights, and what is around it.

`PolicyModel` makes the same calls, in one go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from p2prl.bench.device_time import median, timed
from p2prl.models.engines.transformers.device_changes import Comparison, Pieces, write_pieces
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.weights.layout import WeightLayout, check_weights, copy_weights, held_digest
from p2prl.patches.words import Words

SHARES = (0.001, 0.01, 0.02, 0.03)
"""Of the words. An update at a learning rate of 1e-6 changes one in a hundred; beyond 3 % all weights are copied."""

_REPEATS = 9
_PROMPT_TOKENS = 4


@dataclass(frozen=True, kw_only=True)
class WriteCost:
    """Seconds to write some of the words, and to look whether they are there."""

    changed_share: float
    write_s: float


@dataclass(frozen=True, kw_only=True)
class PartCosts:
    """Medians in seconds: of processor time where the model is on a CPU, of wall time elsewhere."""

    writes: tuple[WriteCost, ...]
    copy_s: float
    """To copy all weights, and to hash those in the engine."""
    forward_s: float
    """Of the forward pass of four tokens that must be finite."""
    stage_s: float
    """To check and hash the weights, and to compare them with those in the engine."""
    check_s: float
    """The same without comparing."""


def part_costs(policy: PolicyModel, layout: WeightLayout, words: Words, *, seed: int) -> PartCosts:
    """Measure with a policy of these words and others near it. `policy` holds another one afterwards."""
    model, device = policy.model, policy.device
    copy_weights(model, layout, words.tobytes())

    def median_s(work: Callable[[], object]) -> float:
        work()  # allocates
        return median(timed(work, device) for _ in range(_REPEATS)).on(device)

    rng = np.random.default_rng(seed)
    changed = {share: _changed(words, share, rng).tobytes() for share in SHARES}
    found = {share: _differences(policy, layout, weights) for share, weights in changed.items()}
    usual = changed[0.01]
    return PartCosts(
        stage_s=median_s(lambda: _differences(policy, layout, usual)),
        check_s=median_s(lambda: check_weights(model, layout, usual)),
        writes=tuple(
            WriteCost(changed_share=share, write_s=median_s(partial(_write, pieces))) for share, pieces in found.items()
        ),
        copy_s=median_s(lambda: _copy(policy, layout, usual)),
        forward_s=median_s(lambda: _forward(policy)),
    )


def _changed(words: Words, share: float, rng: np.random.Generator) -> Words:
    """The lowest bit of the mantissa flipped in this share of the words."""
    changed = words.copy()
    changed[rng.choice(len(words), round(share * len(words)), replace=False)] ^= 1
    return changed


def _differences(policy: PolicyModel, layout: WeightLayout, weights: bytes) -> Pieces:
    comparison = Comparison(layout.parameters)

    def compare(tensor: Tensor, start: int, block: Tensor) -> None:
        comparison.add(tensor.detach().view(-1)[start : start + block.numel()], block)

    check_weights(policy.model, layout, weights, compare)
    pieces = comparison.pieces
    assert pieces is not None, "no more changes than are written one by one"
    return pieces


def _write(pieces: Pieces) -> None:
    assert write_pieces(pieces)


def _copy(policy: PolicyModel, layout: WeightLayout, weights: bytes) -> None:
    copy_weights(policy.model, layout, weights)
    held_digest(policy.model, layout)


@torch.inference_mode()
def _forward(policy: PolicyModel) -> None:
    prompt = torch.arange(_PROMPT_TOKENS, device=policy.device)[None]
    assert torch.isfinite(policy.forward(prompt, cache=None, keep=1)).all()
