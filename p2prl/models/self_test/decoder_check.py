"""Whether a model is a decoder as a run needs it, found by comparing it with itself: for architectures no test has.

Volunteers sample with a cache and in batches, learner and validators replay without either. Where a model's numbers
depend on that, or on tokens that come later, honest work would be refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from p2prl.errors import ConfigError, P2PRLError
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.hardware.failures import is_out_of_memory
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.weights.layout import layout_of

_LARGEST_ERROR = 1e-3
"""Root mean square difference of logits, relative to their spread, in float32: a thousand times rounding."""

_LARGEST_LOGPROB_ERROR = 1e-2
"""The same of a token's log-prob, nats."""

_SEQUENCES = ((1, 2, 3, 4, 5, 6, 7, 8, 9), (3, 1, 2), (2, 5, 4, 3, 1, 6))
"""Token ids, taken modulo the vocabulary."""

_NEW_TOKENS = 4


def check_decoder(model: Any) -> None:
    """`ConfigError` with what differs unless a float32 model computes the same in every way that a run computes it."""
    try:
        fault = _fault(model)
    except P2PRLError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        fault = f"it does not run as others do: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if fault:
        raise ConfigError(
            f"no run can use the architecture {model.config.model_type!r}: {fault}",
            remedy="Choose another base model; docs/researchers.md names tested ones.",
        )


@torch.no_grad()
def _fault(model: Any) -> str:
    """What differs; empty if nothing does."""
    vocabulary: int = model.config.vocab_size
    sequences = [tuple(token % vocabulary for token in sequence) for sequence in _SEQUENCES]
    alone = [_logits(model, [sequence])[0] for sequence in sequences]
    if alone[0].shape != (len(sequences[0]), vocabulary):
        return f"its logits have the shape {tuple(alone[0].shape)}, not one for each word of the vocabulary"
    if not all(bool(torch.isfinite(logits).all()) for logits in alone):
        return "its logits are not numbers"
    half = len(sequences[0]) // 2
    changed = (*sequences[0][:half], *((token + 1) % vocabulary for token in sequences[0][half:]))
    if not _is_equal(_logits(model, [changed])[0, :half], alone[0][:half]):
        return "its logits depend on tokens that come later"
    longest = max(map(len, sequences))
    padded = _logits(model, [(*sequence, *[0] * (longest - len(sequence))) for sequence in sequences])
    if not all(_is_equal(row[: len(one)], one) for row, one in zip(padded, alone, strict=True)):
        return "its logits depend on the other rows of a batch, or on what comes after a row's end"
    return _cache_fault(model, sequences)


def _cache_fault(model: Any, sequences: Sequence[tuple[int, ...]]) -> str:
    policy = PolicyModel(model, layout_of(model, "float32"))
    requests = [
        GenerationRequest(
            prompt_ids=sequence, seed=seed, max_new_tokens=_NEW_TOKENS, temperature=1.0, stop_ids=frozenset()
        )
        for sequence in sequences
        for seed in (1, 2)
    ]
    made = sample_all(TransformersSampler(policy), requests)
    replayed = TransformersScorer(policy).replay(requests, [each.token_ids for each in made])
    off = [
        abs(drawn - again)
        for one, other in zip(made, replayed, strict=True)
        for drawn, again in zip(one.logprobs, other.logprobs, strict=True)
    ]
    return "" if max(off) <= _LARGEST_LOGPROB_ERROR else "with a cache it computes other numbers than without"


def _logits(model: Any, rows: Sequence[Sequence[int]]) -> Tensor:
    device = next(model.parameters()).device
    logits: Tensor = model(input_ids=torch.tensor([list(row) for row in rows], device=device), use_cache=False).logits
    return logits.float()


def _is_equal(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).square().mean().sqrt() <= _LARGEST_ERROR * other.std())
