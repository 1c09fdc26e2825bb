"""Recorded decoding steps against plain ones; the recorder repeats torch's operations on the tensors recorded."""

from __future__ import annotations

import pytest
import torch

from p2prl.errors import IntegrityError
from p2prl.models.engines.transformers import decode_graph
from p2prl.models.engines.transformers.row_limit import RowLimit
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.slot_decoder import SlotDecoder
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.weights.layout import flatten
from tests.unit.models.engines.transformers.replayed_calls import (
    ReplayedCalls,
    assert_same,
    draw_as_operation,
    graphs,
    requests,
    small_policy,
    use_replayed_calls,
)


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[ReplayedCalls]:
    """Recorders of the samplers that are made in a test, in order."""
    return use_replayed_calls(monkeypatch)


@pytest.mark.parametrize("most_rows", [1, 5, 64])
def test_rows_that_join_and_leave_get_the_same_tokens(most_rows: int, recorders: list[ReplayedCalls]) -> None:
    policy = small_policy()
    asked = requests(30, tokens=20, stops=(3, 17))
    wanted = sample_all(TransformersSampler(policy, most_rows=most_rows, capture=False), asked)
    assert not recorders
    told: list[int] = []
    sampler = TransformersSampler(policy, most_rows=most_rows)
    made = sample_all(sampler, asked, on_step=told.append)
    assert_same(made, wanted)
    assert sum(told) == sum(len(each.token_ids) for each in made)
    assert recorders[0].replayed > recorders[0].recorded > 0
    assert max(count for count, _ in recorded(sampler)) <= most_rows


def recorded(sampler: TransformersSampler) -> list[tuple[int, int]]:
    decoder = sampler._decoder
    assert isinstance(decoder, SlotDecoder)
    assert decoder._graphs is not None
    return list(decoder._graphs._steps)


def test_numbers_of_rows_and_widths_are_rounded_up_to_few(recorders: list[ReplayedCalls]) -> None:
    policy = small_policy()
    sampler = TransformersSampler(policy)
    for count in (5, 6, 7, 8):
        sample_all(sampler, [*requests(count), *long_request()])
    assert {count for count, _ in recorded(sampler)} <= {1, 2, 4, 8, 16}
    assert {width for _, width in recorded(sampler)} <= {4, 8, 16, 32, 33}
    assert recorders[0].replayed > 3 * recorders[0].recorded


def test_other_limits_of_rows_and_tokens_record_no_other_steps(recorders: list[ReplayedCalls]) -> None:
    """Rows that fit depend on the longest completion in flight, and so change all the time."""
    sampler = TransformersSampler(small_policy())
    sample_all(sampler, requests(9, tokens=29))
    for tokens in (28, 27, 25):
        sampler._limit = RowLimit(budget_bytes=10**9, token_bytes=1, vocabulary=1, most_rows=9 + tokens)
        sample_all(sampler, requests(9, tokens=tokens))
    decoder = sampler._decoder
    assert isinstance(decoder, SlotDecoder)
    assert {count for count, _ in recorded(sampler)} <= {1, 2, 4, 8, 16}
    assert {width for _, width in recorded(sampler)} <= {4, 8, 16, decoder._model.columns}


def long_request() -> list[GenerationRequest]:
    return [GenerationRequest(prompt_ids=(1, 2, 3), seed=5, max_new_tokens=30, temperature=1.0, stop_ids=frozenset())]


def test_a_step_that_is_running_is_of_the_policy_that_it_began_with(recorders: list[ReplayedCalls]) -> None:
    policy, other = small_policy(1), small_policy(2)
    weights = bytes(flatten(other.model, other._layout))
    asked = requests(9, tokens=24)
    alone = sample_all(TransformersSampler(policy, capture=False), asked)
    sampler = TransformersSampler(policy)
    sample_all(sampler, asked)
    kept = recorders[0].recorded
    steps = 0

    def swap(_: int) -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
            sampler.swap(sampler.stage(weights, 7))

    made = sample_all(sampler, asked, on_step=swap)
    assert recorders[0].recorded == kept, "weights are written in place"
    long = [i for i, each in enumerate(made) if len(each.token_ids) > 10]
    assert long
    for i in long:
        # The fifth call returns the fourth token, while the card makes the fifth.
        assert list(made[i].spans) == [(0, -1), (5, 7)]
        assert made[i].token_ids[:5] == alone[i].token_ids[:5]
    assert any(made[i].token_ids != alone[i].token_ids for i in long)


def test_a_row_that_ended_at_the_last_column_writes_into_no_other(recorders: list[ReplayedCalls]) -> None:
    policy = small_policy()
    shapes = [(30, 3), *[(2 + i, 20) for i in range(5)]]  # too many go on for the first one to be dropped
    asked = [
        GenerationRequest(
            prompt_ids=tuple(range(size)), seed=size, max_new_tokens=most, temperature=1.0, stop_ids=frozenset()
        )
        for size, most in shapes
    ]
    wanted = sample_all(TransformersSampler(policy, capture=False), asked)
    assert_same(sample_all(TransformersSampler(policy), asked), wanted)


def test_what_was_cancelled_leaves_no_token_behind(recorders: list[ReplayedCalls]) -> None:
    """The step that is running then is of rows that are gone."""
    policy = small_policy()
    asked, others = requests(9, tokens=24), requests(18, tokens=24)[9:]
    wanted = sample_all(TransformersSampler(policy, capture=False), others)
    sampler = TransformersSampler(policy)
    for steps in (1, 2, 7):
        sampler.submit(asked)
        for _ in range(steps):
            sampler.step()
        sampler.cancel()
        told: list[int] = []
        assert_same(sample_all(sampler, others, on_step=told.append), wanted)
        assert sum(told) == sum(len(each.token_ids) for each in wanted)
    assert graphs(sampler) > 0


def test_logits_that_are_not_numbers_end_a_recorded_step_too(recorders: list[ReplayedCalls]) -> None:
    policy = small_policy()
    weights = bytes(flatten(policy.model, policy._layout))
    asked = requests(9, tokens=24)
    wanted = sample_all(TransformersSampler(policy, capture=False), asked)
    sampler = TransformersSampler(policy)
    sampler.submit(asked)
    for _ in range(3):
        sampler.step()
    policy.model.lm_head.weight.data[3] = float("nan")
    sampler.step()  # takes the tokens of the step before
    with pytest.raises(IntegrityError, match="not numbers"):
        sampler.step()
    assert sampler.in_flight == 0
    sampler.swap(sampler.stage(weights, 4))
    assert_same(sample_all(sampler, asked), wanted)


def test_graphs_are_dropped_when_memory_moves(recorders: list[ReplayedCalls]) -> None:
    policy = small_policy()
    weights = bytes(flatten(policy.model, policy._layout))
    asked = requests(8)
    wanted = sample_all(TransformersSampler(policy, capture=False), asked)
    sampler = TransformersSampler(policy)
    assert_same(sample_all(sampler, asked), wanted)
    first = recorders[0].recorded
    assert_same(sample_all(sampler, asked), wanted)
    assert recorders[0].recorded == first
    sampler.sleep()
    assert graphs(sampler) == 0
    sampler.swap(sampler.stage(weights, 3))
    assert_same(sample_all(sampler, asked), wanted)
    assert recorders[0].recorded > first
    second = recorders[0].recorded
    policy.drop_policy()  # by another one that computes with the model
    policy.load(weights)
    assert_same(sample_all(sampler, asked), wanted)
    assert recorders[0].recorded > second


@pytest.mark.parametrize(("kind", "is_recorded"), [("default", True), ("dynamic", False), ("longrope", False)])
def test_positions_that_depend_on_the_longest_row_are_not_recorded(
    kind: str, is_recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device that could record otherwise."""
    policy = small_policy()
    policy.config.rope_parameters = {"rope_type": kind, "rope_theta": 1e4}
    policy.device = torch.device("cuda")
    monkeypatch.setattr(decode_graph, "card_draw", lambda device: draw_as_operation)
    monkeypatch.setattr(decode_graph, "CardRecorder", lambda device: ReplayedCalls())
    assert (decode_graph.recorder_for(policy) is not None) == is_recorded
    nested = {"full_attention": policy.config.rope_parameters, "sliding_attention": {"rope_type": "default"}}
    policy.config.rope_parameters = nested
    assert (decode_graph.recorder_for(policy) is not None) == is_recorded
    monkeypatch.setattr(decode_graph, "card_draw", lambda device: None)
    assert decode_graph.recorder_for(policy) is None, "the draw would wait for the card"
