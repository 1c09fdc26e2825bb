"""The sampler within its memory: rows that fit, and running out of it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from p2prl.errors import MachineError
from p2prl.models.sampling import sample_all
from tests.unit.models.engines.test_sampling_and_replay import VOCABULARY, _model, _requests, _same, _sampler


@pytest.mark.parametrize("kind", ["qwen2", "lfm2"])
def test_running_out_of_memory_loses_no_token(kind: str) -> None:
    model, requests = _model(kind), _requests()
    expected = sample_all(_sampler(model), requests)
    calls = itertools.count()

    def full(_: Any, __: Any, inputs: dict[str, Any]) -> None:
        if inputs["input_ids"].shape[0] > 5 and next(calls) >= 4:
            raise torch.OutOfMemoryError("CUDA out of memory")

    sampler = _sampler(model)
    model.register_forward_pre_hook(full, with_kwargs=True)
    made = sample_all(sampler, requests)
    assert all(_same(a, b) for a, b in zip(made, expected, strict=True))
    assert sampler.room <= 5


def test_one_completion_that_does_not_fit_is_an_error() -> None:
    model = _model("qwen2")
    sampler = _sampler(model)
    sample_all(sampler, _requests(1))

    def full(*_: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

    model.register_forward_pre_hook(full)
    with pytest.raises(MachineError, match="one completion"):
        sample_all(sampler, _requests(2))


def test_granted_memory_bounds_the_rows() -> None:
    model = _model("qwen2")
    weights = sum(parameter.nbytes for parameter in model.parameters())
    request = dataclasses.replace(_requests(1)[0], prompt_ids=(1,) * 8, max_new_tokens=32, stop_ids=frozenset())
    row = 40 * 2 * 2 * 2 * 8 * 4 + 32 * VOCABULARY  # tokens · layers · (keys, values) · heads · width · bytes + logits
    sampler = _sampler(model, memory_bytes=weights + 5 * row)
    sampler.submit([request])
    sampler.step()
    assert sampler.room == 4
    sampler.submit([request] * 6)
    assert sampler.room == -2
    sampler.step()
    sampler.cancel()
    assert (sampler.in_flight, sampler.room) == (0, 5)
