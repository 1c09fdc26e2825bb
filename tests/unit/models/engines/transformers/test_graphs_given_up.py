"""Recorded steps that are given up: decoding goes on without them, with the same tokens and as many rows as fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from p2prl.models.engines.transformers import slot_decoder, slot_model
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.sampling import sample_all
from tests.unit.models.engines.transformers.replayed_calls import (
    VOCABULARY,
    ReplayedCalls,
    assert_same,
    graphs,
    requests,
    small_policy,
    use_replayed_calls,
)


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[ReplayedCalls]:
    """Recorders of the samplers that are made in a test, in order."""
    return use_replayed_calls(monkeypatch)


def test_decoding_goes_on_when_a_step_cannot_be_recorded(
    recorders: list[ReplayedCalls], caplog: pytest.LogCaptureFixture
) -> None:
    policy = small_policy()
    asked = requests(20, tokens=30, stops=(3,))
    wanted = sample_all(TransformersSampler(policy, capture=False), asked)
    sampler, steps = TransformersSampler(policy), 0

    def read(module: Any, inputs: Any, output: torch.Tensor) -> None:
        if steps > 3:
            output.sum().item()

    def count(_: int) -> None:
        nonlocal steps
        steps += 1

    with policy.model.model.layers[0].mlp.register_forward_hook(read):
        made = sample_all(sampler, asked, on_step=count)
    assert_same(made, wanted)
    assert graphs(sampler) == -1
    assert "without CUDA graphs: aten::item is not permitted" in caplog.text


def test_a_recording_that_draws_other_tokens_is_not_used(
    recorders: list[ReplayedCalls], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = small_policy()
    asked = requests(6)
    wanted = sample_all(TransformersSampler(policy, capture=False), asked)

    def forgetful(self: ReplayedCalls, work: Any) -> Any:
        work()
        return lambda: None

    monkeypatch.setattr(ReplayedCalls, "record", forgetful)
    sampler = TransformersSampler(policy)
    assert_same(sample_all(sampler, asked), wanted)
    assert graphs(sampler) == -1
    assert "draws other tokens" in caplog.text


def record_blurred(policy: PolicyModel, deviation: float, *, first: int = 0) -> Any:
    """A recording whose logits differ, from row `first` on, as those of other kernels do."""
    generator = torch.Generator().manual_seed(2)

    def blur(_: Any, __: Any, logits: torch.Tensor) -> torch.Tensor:
        noise = deviation * torch.randn(logits.shape, generator=generator)
        noise[:first] = 0.0
        return logits.float() + noise

    def record(_: ReplayedCalls, work: Any) -> Any:
        work()

        def again() -> None:
            with policy.model.lm_head.register_forward_hook(blur):
                work()

        return again

    return record


@pytest.mark.parametrize(
    ("dtype", "deviation", "is_used"),
    [("bfloat16", 0.05, True), ("bfloat16", 2.0, False), ("float16", 0.05, False), ("float32", 0.05, False)],
)
def test_a_recording_may_round_otherwise_in_16_bits_by_as_much_as_a_learner_credits(
    dtype: str, deviation: float, is_used: bool, recorders: list[ReplayedCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = small_policy(dtype=dtype)
    monkeypatch.setattr(ReplayedCalls, "record", record_blurred(policy, deviation))
    sampler = TransformersSampler(policy)
    sample_all(sampler, requests(200))
    assert (graphs(sampler) > 0) == is_used


def test_rows_that_fill_a_bucket_may_draw_what_they_like(
    recorders: list[ReplayedCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in their cache is of no completion, and may be no number."""
    policy = small_policy()
    asked = [replace(request, max_new_tokens=9) for request in requests(5)]
    wanted = sample_all(TransformersSampler(policy, capture=False), asked)
    for first, is_used in ((5, True), (4, False)):
        monkeypatch.setattr(ReplayedCalls, "record", record_blurred(policy, 50.0, first=first))
        sampler = TransformersSampler(policy)
        assert_same(sample_all(sampler, asked), wanted)
        assert (graphs(sampler) > 0) == is_used


def test_completions_that_ended_are_told_although_memory_ran_out_then(
    recorders: list[ReplayedCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = small_policy()
    asked = requests(16, tokens=30)
    wanted = sample_all(TransformersSampler(policy, capture=False), asked)
    fill, failures = slot_model.SlotModel.fill, 0

    def scarce(self: Any, slots: Sequence[int], sequences: Sequence[tuple[int, ...]]) -> None:
        nonlocal failures
        if self.rows and failures < 2 and any(recorder.replayed > 5 for recorder in recorders):
            failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        fill(self, slots, sequences)

    sampler = TransformersSampler(policy, most_rows=6)
    monkeypatch.setattr(slot_model.SlotModel, "fill", scarce)
    assert_same(sample_all(sampler, asked), wanted)
    assert failures == 2


def test_where_memory_lacks_for_recorded_steps_alone_decoding_goes_on_without(
    recorders: list[ReplayedCalls], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = small_policy()
    asked = requests(6)
    wanted = sample_all(TransformersSampler(policy, capture=False), asked)
    record, rows = ReplayedCalls.record, []

    def scarce(self: ReplayedCalls, work: Any) -> Any:
        rows.append(work.args[0])
        if len(rows) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return record(self, work)

    monkeypatch.setattr(ReplayedCalls, "record", scarce)
    sampler = TransformersSampler(policy, most_rows=4)
    assert_same(sample_all(sampler, asked), wanted)
    assert graphs(sampler) == -1
    assert rows[-1] == 1, "graphs are given up last"
    assert "without CUDA graphs, as memory ran out" in caplog.text


def plain_calls(_: ReplayedCalls, work: Any) -> Any:
    """A step that is done again call by call."""
    work()
    return work


def row_bytes(policy: PolicyModel, tokens: int) -> int:
    """Keys, values and logits of one row."""
    heads: int = policy.config.num_key_value_heads
    return tokens * 2 * policy.layers * heads * 8 * 4 + VOCABULARY * 32


@pytest.mark.parametrize("cause", ["memory", "capture"])
def test_without_recorded_steps_as_many_rows_fit_as_if_there_had_never_been_any(
    cause: str, recorders: list[ReplayedCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = small_policy()
    asked = [replace(request, max_new_tokens=12, prompt_ids=(1, 2, 3)) for request in requests(40)]
    memory = sum(parameter.nbytes for parameter in policy.model.parameters()) + 20 * row_bytes(policy, 15)
    plain = TransformersSampler(policy, memory_bytes=memory, capture=False)
    wanted = sample_all(plain, asked)
    monkeypatch.setattr(slot_decoder, "GRAPH_BYTES", 8 * row_bytes(policy, 15))
    fails = False

    def limited(self: ReplayedCalls, work: Any) -> Any:
        if fails:
            raise torch.OutOfMemoryError("CUDA out of memory") if cause == "memory" else RuntimeError("not permitted")
        return plain_calls(self, work)

    monkeypatch.setattr(ReplayedCalls, "record", limited)
    sampler = TransformersSampler(policy, memory_bytes=memory)
    assert_same(sample_all(sampler, asked), wanted)
    assert graphs(sampler) > 0
    sampler.submit(asked[:1])
    assert sampler.room == 11, "beside what the graphs take"
    fails = True
    sampler.cancel()
    sampler._decoder.clear()  # so that steps are recorded anew
    sampler.submit(asked)
    while sampler.in_flight:
        sampler.step()
    assert graphs(sampler) == -1
    for each in (sampler, plain):
        each.submit(asked[:1])
        assert each.room == 19
        each.cancel()
    assert_same(sample_all(sampler, asked), wanted)
