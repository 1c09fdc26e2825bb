"""Recorded decoding steps against plain ones; the recorder repeats torch's operations on the tensors recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from p2prl.errors import IntegrityError
from p2prl.models import decode_graph, slot_decoder, slot_model
from p2prl.models.policy_model import PolicyModel
from p2prl.models.row_limit import RowLimit
from p2prl.models.sampler_port import Generation, GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.slot_decoder import SlotDecoder
from p2prl.models.transformers_sampler import TransformersSampler
from p2prl.models.weight_layout import TORCH_DTYPES, flatten, layout_of
from tests.unit.models.replayed_calls import ReplayedCalls, draw_as_operation

VOCABULARY = 40


def small_policy(seed: int = 1, dtype: str = "float32") -> PolicyModel:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        config = Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )  # fmt: skip
        model = Qwen2ForCausalLM(config)
    for parameter in model.parameters():
        parameter.data *= 8  # logits that differ by some units
    model.to(TORCH_DTYPES[dtype])
    return PolicyModel(model, layout_of(model, dtype))


def requests(count: int, *, tokens: int = 12, stops: Sequence[int] = ()) -> list[GenerationRequest]:
    """Groups of three with a prompt each; every completion has its own limit and temperature."""
    return [
        GenerationRequest(
            prompt_ids=tuple((5 * (i // 3) + 3 * j) % VOCABULARY for j in range(1 + i // 3 % 5)),
            seed=(i + 1) * 0x1234_5678_9ABC_DEF % 2**63,
            max_new_tokens=1 + (7 * i) % tokens,
            temperature=0.5 + i % 4 / 4,
            stop_ids=frozenset(stops),
        )
        for i in range(count)
    ]


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[ReplayedCalls]:
    """Recorders of the samplers that are made in a test, in order."""
    made: list[ReplayedCalls] = []

    def recorder(_: PolicyModel) -> ReplayedCalls:
        made.append(ReplayedCalls())
        return made[-1]

    monkeypatch.setattr(slot_decoder, "recorder_for", recorder)
    monkeypatch.setattr(decode_graph, "draw_with_logprobs", draw_as_operation)
    monkeypatch.setattr(slot_decoder, "LEAST_WIDTH", 4)
    return made


def assert_same(made: Sequence[Generation], wanted: Sequence[Generation]) -> None:
    assert [each.token_ids for each in made] == [each.token_ids for each in wanted]
    for one, other in zip(made, wanted, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
        assert one.finished == other.finished


def graphs(sampler: TransformersSampler) -> int:
    decoder = sampler._decoder
    assert isinstance(decoder, SlotDecoder)
    return -1 if decoder._graphs is None else decoder._graphs.count


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
    return tokens * 2 * policy.layers * policy.config.num_key_value_heads * 8 * 4 + VOCABULARY * 32


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
