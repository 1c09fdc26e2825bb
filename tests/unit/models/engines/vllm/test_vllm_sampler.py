"""The vLLM sampler on real engines: draws, log-probs, swaps in flight, known answers, and what goes wrong.

Runs where vLLM is importable, on a CPU or a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from p2prl.errors import ConfigError, IntegrityError, MachineError
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.engines.vllm import policy as vllm_policy
from p2prl.models.engines.vllm import weight_transfer as vllm_weights
from p2prl.models.engines.vllm.draw import ARGUMENTS, DrawArguments, Draws
from p2prl.models.engines.vllm.engine import VllmOptions
from p2prl.models.engines.vllm.processors import runner_v2
from p2prl.models.engines.vllm.sampler import VllmSampler
from p2prl.models.sampler_port import Generation, GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.seeded_draw.gumbel_noise import gumbel
from p2prl.models.weights.reader import WeightReader
from p2prl_lab.testing.mixed_replay import differing_tokens
from tests.unit.models.engines.vllm.vllm_runs import (
    CONTEXT,
    LAYOUT,
    MODELS,
    SEQUENCES,
    STOPS,
    VOCABULARY,
    WEIGHTS,
    model,
    requests,
    run_model,
)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),  # importing vLLM alone takes up to half a minute
]


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmSampler]:
    options = VllmOptions(memory_bytes=1 << 22, sequences=SEQUENCES, context=CONTEXT)
    sampler = VllmSampler(run_model(), device=torch.device("cpu"), dtype="float32", options=options)
    yield sampler
    sampler.sleep()


@pytest.fixture
def sampler(engine: VllmSampler) -> VllmSampler:
    """The engine with version 0 and nothing in flight."""
    engine.cancel()
    engine.swap(engine.stage(WEIGHTS[0], 0))
    return engine


def test_every_token_is_the_seeded_draw(sampler: VllmSampler) -> None:
    asked = requests(4 * SEQUENCES)  # more than are decoded at once
    made = sample_all(sampler, asked)
    assert {generation.spans for generation in made} == {((0, 0),)}
    assert {generation.finished for generation in made} == {True, False}
    assert all(generation.finished == (generation.token_ids[-1] in STOPS) for generation in made)
    scorer = TransformersScorer(PolicyModel(MODELS[0], LAYOUT))
    for scored, generation in zip(scorer.replay(asked, [a.token_ids for a in made]), made, strict=True):
        assert max(scored.margins) == 0.0
        assert scored.logprobs == pytest.approx(generation.logprobs, abs=1e-4)
    assert sample_all(sampler, asked[::-1]) == made[::-1]  # whatever else is in the batch


def test_a_continued_request_goes_on_with_the_noise(sampler: VllmSampler) -> None:
    """As turns of an environment do: the rest of a completion is another request."""
    asked = requests(4, stop_ids=frozenset())
    whole = sample_all(sampler, asked)
    rest = [
        replace(
            request,
            prompt_ids=(*request.prompt_ids, *made.token_ids[:9]),
            max_new_tokens=request.max_new_tokens - 9,
            first_position=9,
        )
        for request, made in zip(asked, whole, strict=True)
    ]
    assert [made.token_ids for made in sample_all(sampler, rest)] == [made.token_ids[9:] for made in whole]


def test_policies_change_under_load_and_the_spans_say_where(sampler: VllmSampler) -> None:
    asked = requests(2 * SEQUENCES, stop_ids=frozenset())
    tickets = sampler.submit(asked)
    ended: dict[int, Generation] = {}
    for version in (1, 2):
        for _ in range(9):
            ended.update(sampler.step().ended)
        sampler.swap(sampler.stage(WEIGHTS[version], version))
        sampler.swap(sampler.stage(WEIGHTS[version], version))  # loses nothing of the first
        assert sampler.in_flight == len(asked) - len(ended)
    while sampler.in_flight:
        ended.update(sampler.step().ended)
    made = [ended[ticket] for ticket in tickets]
    assert [version for _, version in made[0].spans] == [0, 1, 2]
    assert made[-1].spans == ((0, 2),)  # was waiting for room
    assert [differing_tokens(MODELS, *pair) for pair in zip(asked, made, strict=True)] == [0] * len(asked)
    # The oracle tells the versions apart.
    wrong = {0: MODELS[0], 1: MODELS[1], 2: MODELS[1]}
    assert all(differing_tokens(wrong, *pair) for pair in zip(asked, made, strict=True))


def test_a_prompt_that_no_token_was_drawn_from_belongs_to_the_new_policy(sampler: VllmSampler) -> None:
    asked = requests(3)
    sampler.submit(asked)
    sampler.step()
    sampler.cancel()  # its prompts are in the cache of version 0
    sampler.submit(asked)
    sampler.swap(sampler.stage(WEIGHTS[1], 1))
    ended: dict[int, Generation] = {}
    while sampler.in_flight:
        ended.update(sampler.step().ended)
    made = [generation for _, generation in sorted(ended.items())]
    assert {generation.spans for generation in made} == {((0, 1),)}
    assert [differing_tokens(MODELS, *pair) for pair in zip(asked, made, strict=True)] == [0] * len(asked)


def test_a_head_of_the_policy_before_is_found_and_the_engine_recovers(
    sampler: VllmSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tied head is packed again after each load; without that, vLLM keeps the old one (on a CPU)."""
    asked = requests(4, stop_ids=frozenset())
    tickets = sampler.submit(asked)
    for _ in range(5):
        sampler.step()
    monkeypatch.setattr(vllm_weights, "_repack_tied_head", lambda model: None)
    with pytest.raises(IntegrityError, match="other logits"):
        sampler.swap(sampler.stage(WEIGHTS[1], 1))
    monkeypatch.undo()
    with pytest.raises(IntegrityError, match="holds no policy"):
        sampler.submit(asked)

    sampler.swap(sampler.stage(WEIGHTS[2], 2))  # in a new engine: the completions go on where they were
    ended: dict[int, Generation] = {}
    while sampler.in_flight:
        ended.update(sampler.step().ended)
    for ticket, request in zip(tickets, asked, strict=True):
        made = ended[ticket]
        assert [version for _, version in made.spans] == [0, 2]
        assert len(made.token_ids) == request.max_new_tokens
        # Their keys were computed again, so the first stretch is version 0's draws, the rest version 2's alone.
        start = made.spans[1][0]
        assert start >= 5
        scores = TransformersScorer(PolicyModel(model(2), LAYOUT)).replay([request], [made.token_ids])[0]
        assert max(scores.margins[start:]) == 0.0
        assert max(scores.margins[:start]) > 0.0


def test_weights_that_vllm_cannot_load_are_this_machines_trouble(
    sampler: VllmSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = sampler.stage(WEIGHTS[1], 1)
    monkeypatch.setattr(vllm_policy, "WeightReader", lambda *given: list(WeightReader(*given))[:-1])
    with pytest.raises(MachineError, match="no weights for 1 of") as caught:
        sampler.swap(staged)
    monkeypatch.undo()
    assert "--engine transformers" in caught.value.remedy
    sampler.swap(staged)
    assert sample_all(sampler, requests(2))[0].spans == ((0, 1),)


def test_a_request_that_vllm_does_not_take_is_told_and_frees_the_engine_of_a_new_policy(
    sampler: VllmSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests(2, stop_ids=frozenset())
    tickets = sampler.submit(asked)
    sampler.step()
    engine = sampler._policy.engine
    assert engine is not None

    def refuse(*_: Any, **__: Any) -> Any:
        raise ValueError("no such request")

    monkeypatch.setattr(type(engine._engine.input_processor), "process_inputs", refuse)
    more = sampler.submit(asked)
    with pytest.raises(MachineError, match="no such request"):
        sampler.step()
    staged = sampler.stage(WEIGHTS[1], 1)
    with pytest.raises(MachineError, match="vLLM cannot run this model here: no such request") as caught:
        sampler.swap(staged)  # its known prompt, also in a second engine
    assert "--engine transformers" in caught.value.remedy
    assert sampler._policy.engine is None
    monkeypatch.undo()
    sampler.swap(staged)
    ended: dict[int, Generation] = {}
    while sampler.in_flight:
        ended.update(sampler.step().ended)
    assert sorted(ended) == [*tickets, *more], "those in flight go on in the next engine"
    assert ended[more[0]].spans == ((0, 1),)


def test_bad_weights_and_requests_are_refused(sampler: VllmSampler) -> None:
    poisoned = bytearray(WEIGHTS[1])
    poisoned[400:404] = b"\x00\x00\xc0\x7f"  # a NaN
    with pytest.raises(IntegrityError, match="not all finite"):
        sampler.stage(poisoned, 1)
    with pytest.raises(IntegrityError, match="do not fill"):
        sampler.stage(WEIGHTS[1][:-4], 1)
    good = requests(1)[0]
    with pytest.raises(ConfigError, match="outside the model's vocabulary"):
        sampler.submit([GenerationRequest(prompt_ids=(VOCABULARY,), seed=1, max_new_tokens=1, temperature=1.0,
                                          stop_ids=frozenset())])  # fmt: skip
    with pytest.raises(ConfigError, match="context of 160"):
        sampler.submit([GenerationRequest(prompt_ids=(1,), seed=1, max_new_tokens=160, temperature=1.0,
                                          stop_ids=frozenset())])  # fmt: skip
    assert sampler.in_flight == 0
    assert len(sample_all(sampler, [good])) == 1


def test_the_second_runner_draws_by_slot_and_length() -> None:
    """On vLLM's own batch description: rows in any order, slots reused, one row still in its prompt."""
    from vllm import SamplingParams
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState

    prompt_len: Any = SimpleNamespace(np=np.array([9, 4, 7, 5]))  # the real one wants pinned memory
    unused: Any = None
    state = LogitsProcRequestState(
        device=torch.device("cpu"),
        max_num_reqs=4,
        vocab_size=VOCABULARY,
        all_token_ids=unused,
        prompt_len=prompt_len,
        prefill_len=SimpleNamespace(np=np.array([9, 4, 7, 5])),
        total_len=unused,
    )
    draws = Draws(version=5)
    processor = runner_v2(draws)(None, state)
    given = [DrawArguments(ticket=t, seed=t * 977, temperature=0.5 + t, first=3 * (t == 2)) for t in range(4)]
    assert not processor.add_request(0, SamplingParams.for_sampler_warmup())
    assert processor.add_request(1, SamplingParams(extra_args={ARGUMENTS: given[3]}))  # the slot's request before
    for slot, arguments in ((2, given[0]), (1, given[1]), (3, given[2])):
        assert processor.add_request(slot, SamplingParams(extra_args={ARGUMENTS: arguments}))
    slots, lengths = np.array([3, 1, 2]), np.array([11, 4, 6, 0])  # padded behind the rows
    where = torch.from_numpy(slots)
    logits = 4 * torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1))
    context = LogitsContext(
        expanded_idx_mapping=where,
        idx_mapping=where,
        idx_mapping_np=slots,
        expanded_local_pos=torch.zeros(3),
        input_ids=torch.zeros(3),
        pos=torch.from_numpy(lengths[:3] - 1),
        seq_lens_upper_bound_np=lengths,
    )
    made = processor.apply(logits.clone(), context)
    forced = made.argmax(dim=-1).tolist()
    # None of a chunk of 6 tokens of a prompt of 7. Positions: 3 from before + 11 − 5 sampled; the first token of 4.
    assert torch.equal(made[2], logits[2])
    assert draws.take(given[0].ticket, 0) is None
    for row, (arguments, position) in enumerate(((given[2], 9), (given[1], 0))):
        scaled = logits[row] / arguments.temperature
        noise = gumbel(torch.tensor([arguments.seed]), torch.tensor([[position]]), VOCABULARY)[0, 0]
        drawn = draws.take(arguments.ticket, position)
        assert drawn is not None
        assert drawn.token == forced[row] == int((scaled + noise).argmax())
        assert drawn.logprob == pytest.approx(float(scaled.log_softmax(-1)[drawn.token]), abs=1e-5)
        assert drawn.version == 5


def test_room_is_what_the_memory_and_the_sequences_leave(sampler: VllmSampler) -> None:
    empty = sampler.room
    assert 1 < empty <= SEQUENCES
    sampler.submit(requests(empty))
    assert sampler.room <= 0
    sampler.cancel()
    assert sampler.room >= empty
    assert sampler.step().tokens == 0


def test_an_engine_that_slept_samples_the_same(sampler: VllmSampler) -> None:
    asked = requests(3)
    before = sample_all(sampler, asked)
    sampler.submit(asked)
    sampler.sleep()
    assert sampler.in_flight == 0
    with pytest.raises(IntegrityError, match="holds no policy"):
        sampler.submit(asked)
    sampler.swap(sampler.stage(WEIGHTS[0], 0))
    assert sample_all(sampler, asked) == before


def test_logits_that_are_not_numbers_stop_the_sampler(sampler: VllmSampler) -> None:
    """Finite weights whose products overflow."""
    huge = bytearray(WEIGHTS[0])
    for i in range(0, len(huge), 4):
        huge[i : i + 4] = b"\xff\xff\x7f\x7f"  # the largest float
    with pytest.raises(IntegrityError, match="other logits"):
        sampler.swap(sampler.stage(huge, 1))


def test_a_full_cache_costs_time_and_no_token(engine: VllmSampler) -> None:
    """vLLM drops the keys of some completions and computes them again."""
    engine.sleep()
    token_bytes = 2 * 2 * 32 * 4  # keys and values of two layers, one head of 32
    memory = 2 * LAYOUT.size_bytes + 16 * 32 * token_bytes
    options = VllmOptions(memory_bytes=memory, sequences=SEQUENCES, context=CONTEXT)
    small = VllmSampler(run_model(), device=torch.device("cpu"), dtype="float32", options=options)
    try:
        small.swap(small.stage(WEIGHTS[0], 0))
        asked = requests(SEQUENCES, new=70, stop_ids=frozenset())
        assert small.room < len(asked)
        assert sum(request.max_new_tokens for request in asked) > 16 * 32
        made = sample_all(small, asked)
        assert [differing_tokens(MODELS, *pair) for pair in zip(asked, made, strict=True)] == [0] * len(asked)
    finally:
        small.sleep()
