"""Micro-batches: parts of a batch that fit the device, whose losses add up to the loss of the complete batch.

Shape legend: B groups, G completions, T tokens, N completions of the whole update.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.ratios import group_log_expectation, masked_mean

_EVERYTHING = slice(None)


def microbatch(batch: RolloutBatch, *, groups: slice = _EVERYTHING, completions: slice = _EVERYTHING) -> RolloutBatch:
    """The part of `batch` with these groups and completions; the cut is of B and G, never of T.

    log Ê and the lengths of the complete batch are written into the part, so `gepo` and every aggregation give the same
    gradient in parts. A part that splits a group is marked, and losses that couple completions reject it.
    """
    mask_BGT = batch.mask_BGT.bool()
    log_expectation_B = batch.group_log_expectation_B
    if log_expectation_B is None:
        log_expectation_B = group_log_expectation(masked_mean(batch.behavior_logprobs_BGT, mask_BGT))
    lengths_N = batch.update_lengths_N
    if lengths_N is None:
        lengths_N = mask_BGT.sum(dim=-1).flatten()
    cut: dict[str, Any] = {}
    for field, shape in batch.tensor_shapes().items():
        value = getattr(batch, field)
        cut[field] = value[groups, completions] if value is not None and len(shape) > 1 else value
    cut["mask_BGT"] = batch.mask_BGT[groups, completions]
    cut["group_log_expectation_B"] = log_expectation_B[groups]
    cut["whole_groups"] = batch.whole_groups and cut["mask_BGT"].shape[1] == mask_BGT.shape[1]
    return replace(batch, **cut, update_lengths_N=lengths_N)
