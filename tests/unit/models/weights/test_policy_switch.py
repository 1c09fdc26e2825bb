"""Switching the policy in an engine: the words that change are written, and what cannot be compared is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import WeightLayout, flatten, layout_of


def engine() -> tuple[Any, WeightLayout, TransformersSampler]:
    model = tiny_model(seed=1).model
    layout = layout_of(model, "float32")
    return model, layout, TransformersSampler(PolicyModel(model, layout))


def test_a_switch_writes_the_words_that_were_staged_and_no_others() -> None:
    model, layout, sampler = engine()
    before = bytes(flatten(model, layout))
    wanted = np.frombuffer(before, dtype="<u4").copy()
    wanted[::100] ^= 1
    file = bytearray(wanted.tobytes())
    staged, stale = sampler.stage(file, 2), sampler.stage(before, 3)
    unchanged = {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
    file[:] = bytes(len(file))  # what was staged is not read again
    sampler.swap(staged)
    assert flatten(model, layout) == wanted.tobytes()
    assert {name: tensor.data_ptr() for name, tensor in model.named_parameters()} == unchanged
    sampler.swap(stale)  # compared with the policy before: copied as a whole
    assert flatten(model, layout) == before


def test_what_the_engine_lost_comes_back_with_the_next_policy() -> None:
    """Weights are compared with those that the engine has, not with those that it was given."""
    model, layout, sampler = engine()
    wanted = bytes(flatten(model, layout))
    with torch.no_grad():
        next(model.parameters()).view(-1)[3] += 1
    sampler.swap(sampler.stage(wanted, 2))
    assert flatten(model, layout) == wanted


def test_a_policy_that_was_staged_while_the_engine_sleeps_is_copied() -> None:
    model, layout, sampler = engine()
    weights = bytes(flatten(model, layout))
    before_sleep = sampler.stage(weights, 2)
    sampler.sleep()
    asleep = sampler.stage(weights, 3)
    for staged in (before_sleep, asleep):
        sampler.sleep()
        sampler.swap(staged)
        assert flatten(model, layout) == weights
