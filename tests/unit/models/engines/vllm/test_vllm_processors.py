"""Rows that vLLM's model runners hand to the run's draw: its own warm-up, slots taken over, chunks, preempted requests.

`Runner` does what vLLM 0.32's second runner does around a logits processor, with its types, in the order of
`vllm/v1/worker/gpu/model_runner.py` (`finish_requests`, `add_requests`, `update_requests`, `prepare_inputs`) on the
state of `states.py`: slots come from the end of a free list, a preempted request gives its slot back and returns with
its first prompt_len and what it had sampled as prefill, and `seq_lens_upper_bound_np` is int32, padded with zeros to
the size of a graph. `warm_up` is `warmup.py`, whose parameters are `SamplingParams.for_sampler_warmup()` and
`SamplingParams(max_tokens=2, temperature=0.0, watermarking=False)`: without `extra_args` both. Needs no vLLM;
`test_vllm_sampler.py` holds these types against the library's.
"""

from __future__ import annotations

from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from p2prl.models.engines.vllm.draw import ARGUMENTS, DeviceSettings, DrawArguments, DrawnToken, DrawRows, Draws
from p2prl.models.engines.vllm.processors import RowsByChange, RowsBySlot
from p2prl.models.seeded_draw.gumbel_noise import gumbel

VOCABULARY, SLOTS = 24, 4
WARM_UP = SimpleNamespace(extra_args=None)


def ours(ticket: int, *, first: int = 0) -> Any:
    arguments = DrawArguments(ticket=ticket, seed=ticket * 977 + 5, temperature=0.6 + ticket, first=first)
    return SimpleNamespace(extra_args={ARGUMENTS: arguments})


def expected(logits_V: Tensor, ticket: int, position: int) -> tuple[int, float]:
    """Token and log-prob by the definition of the draw."""
    scaled = logits_V / (0.6 + ticket)
    noise = gumbel(torch.tensor([ticket * 977 + 5]), torch.tensor([[position]]), VOCABULARY)[0, 0]
    token = int((scaled + noise).argmax())
    return token, float(scaled.log_softmax(-1)[token])


class Runner:
    """vLLM's second runner, without a model: random logits for every row."""

    def __init__(self, draws: Draws) -> None:
        self.prompt_len, self.prefill_len = np.zeros(SLOTS, np.int32), np.zeros(SLOTS, np.int32)
        states = SimpleNamespace(
            max_num_reqs=SLOTS,
            prompt_len=SimpleNamespace(np=self.prompt_len),
            prefill_len=SimpleNamespace(np=self.prefill_len),
        )
        self.processor = RowsBySlot(draws, states)
        self.free = list(range(SLOTS))
        self.slot_of: dict[str, int] = {}
        self.computed = np.zeros(SLOTS, np.int32)
        self.generator = torch.Generator().manual_seed(3)

    def add(self, name: str, params: Any, *, prompt: int, prefill: int | None = None, computed: int = 0) -> bool:
        slot = self.slot_of[name] = self.free.pop()
        self.prompt_len[slot], self.prefill_len[slot] = prompt, prefill or prompt
        self.computed[slot] = computed
        return self.processor.add_request(slot, params)

    def remove(self, name: str) -> None:
        """Finished, aborted or preempted: the processor is not told."""
        self.free.append(self.slot_of.pop(name))

    def step(self, scheduled: dict[str, int], *, padding: int = 0) -> tuple[Tensor, Tensor]:
        """Logits of the rows before and after the processor."""
        slots = np.fromiter((self.slot_of[name] for name in scheduled), dtype=np.intp)
        lengths = np.zeros(len(scheduled) + padding, np.int32)
        np.add(self.computed[slots], np.array(list(scheduled.values()), np.int32), out=lengths[: len(slots)])
        self.computed[slots] = lengths[: len(slots)]
        logits = 3 * torch.randn(len(slots), VOCABULARY, generator=self.generator)
        context = SimpleNamespace(idx_mapping_np=slots, seq_lens_upper_bound_np=lengths)
        return logits, self.processor.apply(logits.clone(), context)


def warm_up(runner: Runner) -> None:
    """Prefill of every slot with two tokens, decodes of all, of two and of one; then the mixed step."""
    names = [f"_warmup_{i}_" for i in range(SLOTS)]
    for name in names:
        assert not runner.add(name, WARM_UP, prompt=2), "these rows are vLLM's own"
    for scheduled in (dict.fromkeys(names, 2), dict.fromkeys(names, 1), dict.fromkeys(names[:2], 1), {names[0]: 1}):
        before, after = runner.step(scheduled)
        assert torch.equal(before, after)
    for name in names:
        runner.remove(name)
    runner.add("_v2_mixed_warmup_decode_", WARM_UP, prompt=2)
    runner.step({"_v2_mixed_warmup_decode_": 2})
    runner.add("_v2_mixed_warmup_prefill_", WARM_UP, prompt=7)
    before, after = runner.step({"_v2_mixed_warmup_decode_": 1, "_v2_mixed_warmup_prefill_": 7})
    assert torch.equal(before, after)
    runner.remove("_v2_mixed_warmup_decode_")
    runner.remove("_v2_mixed_warmup_prefill_")


def taken(draws: Draws, ticket: int, position: int) -> DrawnToken:
    drawn = draws.take(ticket, position)
    assert drawn is not None
    return drawn


def check(draws: Draws, before: Tensor, after: Tensor, row: int, ticket: int, position: int) -> None:
    """That a row's draw is the defined one, and that vLLM takes it."""
    drawn = taken(draws, ticket, position)
    token, logprob = expected(before[row], ticket, position)
    assert drawn.token == int(after[row].argmax()) == token
    assert drawn.logprob == pytest.approx(logprob, abs=1e-5)


def test_the_warm_up_leaves_every_row_as_it_was_and_ours_take_over_its_slots() -> None:
    draws = Draws(version=5)
    runner = Runner(draws)
    warm_up(runner)
    for ticket in (1, 2):
        assert runner.add(f"{ticket}.0", ours(ticket), prompt=3)
    before, after = runner.step({"1.0": 3, "2.0": 3}, padding=2)
    for row, ticket in enumerate((1, 2)):
        check(draws, before, after, row, ticket, 0)


def test_a_row_of_vllms_own_beside_ours_stays_as_it_was() -> None:
    draws = Draws()
    runner = Runner(draws)
    runner.add("1.0", ours(1), prompt=2)
    runner.remove("1.0")
    runner.add("_warmup_0_", WARM_UP, prompt=2)  # in that slot
    runner.add("2.0", ours(2), prompt=2)
    before, after = runner.step({"_warmup_0_": 2, "2.0": 2})
    assert torch.equal(before[0], after[0])
    assert draws.take(1, 0) is None
    check(draws, before, after, 1, 2, 0)


def test_chunks_of_a_prompt_draw_nothing_and_decodes_beside_them_go_on() -> None:
    draws = Draws()
    runner = Runner(draws)
    runner.add("1.0", ours(1, first=9), prompt=4)
    runner.step({"1.0": 4})
    runner.add("2.0", ours(2), prompt=10)
    for chunk, position in ((4, 10), (5, 11)):
        before, after = runner.step({"1.0": 1, "2.0": chunk}, padding=1)
        check(draws, before, after, 0, 1, position)
        assert torch.equal(before[1], after[1])
        assert draws.take(2, 0) is None
    before, after = runner.step({"1.0": 1, "2.0": 1})
    check(draws, before, after, 1, 2, 0)


def test_a_preempted_request_goes_on_at_its_position() -> None:
    draws = Draws()
    runner = Runner(draws)
    runner.add("1.0", ours(1), prompt=3)
    for scheduled in (3, 1, 1):
        runner.step({"1.0": scheduled})
    runner.remove("1.0")
    runner.add("2.0", ours(2), prompt=2)  # takes over its slot
    assert runner.add("1.0", ours(1), prompt=3, prefill=6)  # with the three tokens it had sampled
    before, after = runner.step({"1.0": 4, "2.0": 2})
    assert torch.equal(before[0], after[0]), "a chunk that ends within what was sampled"
    check(draws, before, after, 1, 2, 0)
    before, after = runner.step({"1.0": 2, "2.0": 1})
    check(draws, before, after, 0, 1, 3)
    check(draws, before, after, 1, 2, 1)
    assert all(draws.take(1, position) is not None for position in range(3)), "what was drawn before may come yet"


def test_a_draw_is_taken_once_and_none_is_left_after_all_are_dropped() -> None:
    draws = Draws()
    runner = Runner(draws)
    runner.add("1.0", ours(1), prompt=3)
    runner.step({"1.0": 3})
    runner.step({"1.0": 1})
    taken(draws, 1, 0)
    assert draws.take(1, 0) is None
    draws.watched = 1
    draws.clear()
    assert draws.take(1, 1) is None
    assert draws.watched is None


def test_the_logits_of_a_watched_request_are_those_before_its_draw() -> None:
    draws = Draws()
    runner = Runner(draws)
    for ticket in (1, 2):
        runner.add(f"{ticket}.0", ours(ticket), prompt=3)
    draws.watched = 2
    before, after = runner.step({"1.0": 3, "2.0": 3})
    assert not torch.equal(before[1], after[1])
    answer = draws.answer(2)
    assert answer is not None
    assert torch.equal(answer, before[1])
    assert draws.take(2, 0) is None
    draws.watched = 3
    runner.step({"1.0": 1})
    assert draws.answer(3) is None, "nothing was drawn for it"


@pytest.mark.parametrize(
    ("logprob", "is_number"), [(-1.5, True), (0.0, True), (float("-inf"), False), (float("nan"), False)]
)
def test_a_draw_from_logits_that_are_no_numbers_is_known(logprob: float, is_number: bool) -> None:
    assert DrawnToken(3, logprob, 0).is_number == is_number


def test_a_step_prepared_before_the_end_of_a_request_leaves_nothing_behind() -> None:
    """vLLM prepares the next step before it reports the tokens of this one."""
    draws = Draws()
    runner = Runner(draws)
    runner.add("1.0", ours(1), prompt=3)
    runner.step({"1.0": 3})
    first = taken(draws, 1, 0)
    draws.forget(1)  # vLLM reported its end
    runner.step({"1.0": 1})
    assert draws.take(1, 1) is None
    assert not draws._drawn
    runner.remove("1.0")
    runner.add("1.1", ours(1), prompt=3)  # queued again
    before, after = runner.step({"1.1": 3})
    check(draws, before, after, 0, 1, 0)
    assert first.token in range(VOCABULARY)


def test_settings_on_the_device_are_those_of_the_step_when_rows_go_on_stay_or_change() -> None:
    held = DeviceSettings()
    requests = {ticket: ours(ticket).extra_args[ARGUMENTS] for ticket in (1, 2, 3)}
    steps: list[list[tuple[int, int]]] = [
        [(1, 4), (2, 0)],
        [(1, 5), (2, 1)],
        [(1, 6), (2, 2)],
        [(1, 6), (2, 2)],  # again: vLLM discarded what it had prepared
        [(1, 7), (2, 2)],
        [(2, 3), (1, 8)],
        [(3, 4), (1, 9)],
        [(3, 5)],
        [(3, 6), (1, 1), (2, 1)],
        [(3, 5), (1, 2), (2, 2)],
        [(3, 6), (1, 3), (2, 3)],
    ]
    places = []
    for step in steps:
        rows = DrawRows.of([requests[ticket] for ticket, _ in step], [position for _, position in step])
        temperatures, seeds, positions = held.of(rows, torch.device("cpu"))
        assert temperatures.tolist() == pytest.approx([0.6 + ticket for ticket, _ in step], rel=1e-6)
        assert seeds.tolist() == [ticket * 977 + 5 for ticket, _ in step]
        assert positions.tolist() == [position for _, position in step]
        places.append(positions.data_ptr())
    assert places[0] == places[1] == places[2], "rows that go on are not sent again"
    assert places[-1] == places[-2]


class Direction(Enum):
    """`MoveDirectionality` of `vllm/v1/sample/logits_processor/interface.py`."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


def update(**changes: Any) -> Any:
    return SimpleNamespace(**({"removed": [], "added": [], "moved": []} | changes))


def test_the_first_runner_leaves_rows_of_others_alone_and_follows_moves() -> None:
    draws = Draws()
    rows = RowsByChange(draws)
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(8))
    assert torch.equal(rows.apply(logits.clone()), logits)
    outputs: list[int] = [4, 4]
    rows.update_state(update(added=[(0, WARM_UP, [], []), (1, ours(1), [], outputs), (2, ours(2, first=9), [], [])]))
    after = rows.apply(logits.clone())
    assert torch.equal(after[0], logits[0])
    check(draws, logits, after, 1, 1, 2)
    check(draws, logits, after, 2, 2, 9)
    rows.update_state(update(added=[(2, WARM_UP, [], [])], moved=[(0, 1, Direction.SWAP)]))
    outputs.append(7)
    after = rows.apply(logits.clone())
    check(draws, logits, after, 0, 1, 3)
    assert torch.equal(after[1:], logits[1:])
    rows.update_state(update(removed=[1, 2], moved=[(0, 1, Direction.UNIDIRECTIONAL)]))
    after = rows.apply(logits[:2].clone())
    assert torch.equal(after[0], logits[0])
    check(draws, logits, after, 1, 1, 3)
