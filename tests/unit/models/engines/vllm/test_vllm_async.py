"""The vLLM sampler on vLLM's own scheduler for CUDA, which prepares a step before it reports the tokens of the last.

Scheduler, engine core, blocks and batch queue are vLLM's. `Executor` stands in for its second model runner, which needs
a card: it does what `vllm/v1/worker/gpu/model_runner.py` of 0.32 does with slots and lengths, computes the logits with
transformers from all tokens of a row, and gives them to the processor that the card's runner would give them to.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.engines.vllm import engine as vllm_engine
from p2prl.models.engines.vllm.draw import Draws
from p2prl.models.engines.vllm.engine import VllmOptions
from p2prl.models.engines.vllm.processors import RowsBySlot
from p2prl.models.engines.vllm.sampler import VllmSampler
from p2prl.models.sampler_port import Generation, GenerationRequest
from p2prl.models.sampling import sample_all
from tests.unit.models.engines.vllm.vllm_runs import CONTEXT, LAYOUT, MODELS, SEQUENCES, WEIGHTS, requests, run_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),  # importing vLLM alone takes up to half a minute
]


def executor_class(draws: Draws) -> type[Any]:
    """vLLM's executor of one process, but for what the model computes."""
    from vllm.v1.executor.uniproc_executor import UniProcExecutor
    from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

    slots = SEQUENCES + 1

    class Executor(UniProcExecutor):  # type: ignore[misc]  # vLLM is optional
        def __init__(self, vllm_config: Any) -> None:
            super().__init__(vllm_config)
            self.prompt_len, self.prefill_len = np.zeros(slots, np.int32), np.zeros(slots, np.int32)
            states = SimpleNamespace(
                max_num_reqs=slots,
                prompt_len=SimpleNamespace(np=self.prompt_len),
                prefill_len=SimpleNamespace(np=self.prefill_len),
            )
            self.processor = RowsBySlot(draws, states)
            self.free = list(range(slots))
            self.slot_of: dict[str, int] = {}
            self.tokens: dict[int, list[int]] = {}
            self.computed = np.zeros(slots, np.int32)
            self.preempted = 0

        def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
            assert non_block
            preempted = scheduler_output.preempted_req_ids or set()
            self.preempted += len(preempted)
            for name in sorted(scheduler_output.finished_req_ids | preempted):
                if name in self.slot_of:
                    self.free.append(self.slot_of.pop(name))
            for new in scheduler_output.scheduled_new_reqs:
                slot = self.slot_of[new.req_id] = self.free.pop()
                self.prompt_len[slot] = len(new.prompt_token_ids)
                self.prefill_len[slot] = len(new.prefill_token_ids)
                self.tokens[slot] = list(new.prefill_token_ids)
                self.computed[slot] = new.num_computed_tokens
                self.processor.add_request(slot, new.sampling_params)
            cached = scheduler_output.scheduled_cached_reqs
            for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
                self.computed[self.slot_of[name]] = computed
            self.scheduled: Any = scheduler_output.num_scheduled_tokens
            done: Future[Any] = Future()
            done.set_result(None if self.scheduled else EMPTY_MODEL_RUNNER_OUTPUT)
            return done

        @torch.inference_mode()
        def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
            assert non_block
            names = list(self.scheduled)
            chosen = np.fromiter((self.slot_of[name] for name in names), dtype=np.intp)
            lengths = np.zeros(len(names) + 2, np.int32)
            lengths[: len(names)] = self.computed[chosen] + np.array(list(self.scheduled.values()), np.int32)
            model = MODELS[max(draws.version, 0)]
            seen = [self.tokens[slot][:length] for slot, length in zip(chosen.tolist(), lengths.tolist(), strict=False)]
            logits = torch.stack([model(input_ids=torch.tensor([ids])).logits[0, -1] for ids in seen])
            context = SimpleNamespace(idx_mapping_np=chosen, seq_lens_upper_bound_np=lengths)
            drawn = self.processor.apply(logits, context).argmax(dim=-1).tolist()
            made: list[list[int]] = []
            for slot, length, token in zip(chosen.tolist(), lengths.tolist(), drawn, strict=False):
                complete = length >= self.prefill_len[slot]
                made.append([token] if complete else [])
                self.tokens[slot] += made[-1]
            rows = {name: row for row, name in enumerate(names)}
            done: Future[Any] = Future()
            done.set_result(ModelRunnerOutput(req_ids=names, req_id_to_index=rows, sampled_token_ids=made))
            return done

    return Executor


def build(monkeypatch: pytest.MonkeyPatch, memory: int = 1 << 22) -> VllmSampler:
    configure = vllm_engine._configuration

    def for_cuda(run: Any, draws: Draws, **settings: Any) -> Any:
        config = configure(run, draws, **settings)
        config.scheduler_config.async_scheduling = True
        config.parallel_config.distributed_executor_backend = executor_class(draws)
        return config

    monkeypatch.setattr(vllm_engine, "_configuration", for_cuda)
    options = VllmOptions(memory_bytes=memory, sequences=SEQUENCES, context=CONTEXT)
    sampler = VllmSampler(run_model(), device=torch.device("cpu"), dtype="float32", options=options)
    core = core_of(sampler)
    core.scheduler.use_v2_model_runner = True  # whose preempted requests come back as new ones
    assert core.batch_queue_size == 2
    sampler.swap(sampler.stage(WEIGHTS[0], 0))
    return sampler


def core_of(sampler: VllmSampler) -> Any:
    engine = sampler._policy.engine
    assert engine is not None
    return engine._engine.engine_core.engine_core


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmSampler]:
    with pytest.MonkeyPatch.context() as patched:
        made = build(patched)
        yield made
        made.sleep()


@pytest.fixture
def sampler(engine: VllmSampler) -> VllmSampler:
    """The engine with version 0 and nothing in flight."""
    engine.cancel()
    engine.swap(engine.stage(WEIGHTS[0], 0))
    return engine


def check(asked: list[GenerationRequest], made: list[Generation], version: int = 0) -> None:
    scorer = TransformersScorer(PolicyModel(MODELS[version], LAYOUT))
    for scored, generation in zip(scorer.replay(asked, [a.token_ids for a in made]), made, strict=True):
        assert max(scored.margins) == 0.0
        assert scored.logprobs == pytest.approx(generation.logprobs, abs=1e-4)


def rest_of(sampler: VllmSampler) -> dict[int, Generation]:
    ended: dict[int, Generation] = {}
    while sampler.in_flight:
        ended.update(sampler.step().ended)
    return ended


def test_tokens_are_drawn_a_step_ahead_and_every_one_is_the_seeded_draw(sampler: VllmSampler) -> None:
    asked = requests(4 * SEQUENCES)
    made = sample_all(sampler, asked)
    assert {generation.finished for generation in made} == {True, False}
    check(asked, made)
    assert not sampler._policy.draws._drawn, "nothing is left of steps prepared in vain"


def test_what_was_in_flight_is_dropped_and_asked_again(sampler: VllmSampler) -> None:
    asked = requests(SEQUENCES, stop_ids=frozenset())
    for steps in (1, 2, 5):
        sampler.submit(asked)
        for _ in range(steps):
            sampler.step()
        sampler.cancel()
    check(asked, sample_all(sampler, asked))


def test_a_policy_changes_between_two_steps(sampler: VllmSampler) -> None:
    asked = requests(SEQUENCES, stop_ids=frozenset())
    tickets = sampler.submit(asked)
    ended: dict[int, Generation] = {}
    for _ in range(9):
        ended.update(sampler.step().ended)
    sampler.swap(sampler.stage(WEIGHTS[1], 1))
    ended |= rest_of(sampler)
    for request, made in ((asked[i], ended[ticket]) for i, ticket in enumerate(tickets)):
        assert [version for _, version in made.spans] == [0, 1]
        start = made.spans[1][0]
        assert 8 <= start <= 12
        for version, part in ((0, slice(0, start)), (1, slice(start, None))):  # here no key outlives its step
            (scored,) = TransformersScorer(PolicyModel(MODELS[version], LAYOUT)).replay([request], [made.token_ids])
            assert max(scored.margins[part]) == 0.0


def test_a_prompt_in_flight_belongs_to_the_new_policy(sampler: VllmSampler) -> None:
    asked = requests(3)
    sampler.submit(asked)
    sampler.step()  # its first tokens are drawn, and not reported
    sampler.swap(sampler.stage(WEIGHTS[1], 1))
    made = [generation for _, generation in sorted(rest_of(sampler).items())]
    assert {generation.spans for generation in made} == {((0, 1),)}
    check(asked, made, version=1)


def test_steps_in_flight_are_finished_before_memory_is_freed(sampler: VllmSampler) -> None:
    sampler.submit(requests(SEQUENCES))
    for _ in range(4):
        sampler.step()
    assert core_of(sampler).batch_queue
    sampler.cancel()
    engine = sampler._policy.engine
    assert engine is not None
    engine._finish_steps()
    assert not core_of(sampler).batch_queue
    asked = requests(2)
    check(asked, sample_all(sampler, asked))


def test_preempted_requests_go_on_at_their_positions(engine: VllmSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Last, as one engine at a time fits a process."""
    engine.sleep()
    token_bytes = 2 * 2 * 32 * 4  # keys and values of two layers, one head of 32
    small = build(monkeypatch, 2 * LAYOUT.size_bytes + 16 * 32 * token_bytes)
    try:
        asked = requests(SEQUENCES, new=70, stop_ids=frozenset())
        made = sample_all(small, asked)
        assert core_of(small).model_executor.preempted > 0
        check(asked, made)
    finally:
        small.sleep()
