"""Logits processors for vLLM's two model runners, which tell the run's draw (`draw.py` beside this) its rows.

The first runner passes changes of the batch (`RowsByChange`). The second, its default on CUDA, passes the batch of
every step (`RowsBySlot`). Both also compute rows that are not ours, as in vLLM's own warm-up, which stay as they are.

The classes here need no vLLM: `runner_v1` and `runner_v2` join them with vLLM's own interfaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from p2prl.models.engines.vllm.draw import ARGUMENTS, DrawArguments, DrawRows, Draws

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor import BatchUpdate

_FOREIGN = -1
"""Ticket of a slot whose request is not ours."""


class RowsByChange:
    """Follows the rows of the first runner's batch, and draws for ours."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._rows: dict[int, tuple[DrawArguments, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        """Whether greedy tokens stay what they were."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Apply removals, additions and moves of rows, in this order."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, _, output_ids in batch_update.added:  # output_ids grows as vLLM decodes
            arguments = _arguments_of(params)
            if arguments is None:
                self._rows.pop(row, None)  # the row's request before
            else:
                self._rows[row] = arguments, output_ids
                self._draws.expect(arguments.ticket)
        for source, target, direction in batch_update.moved:
            moved, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if replaced is not None and direction.name == "SWAP":
                self._rows[source] = replaced

    def apply(self, logits: Tensor) -> Tensor:
        """Draw, in place."""
        ours = np.array([row for row in range(len(logits)) if row in self._rows], np.int64)
        if len(ours):
            held = [self._rows[row] for row in ours.tolist()]
            rows = DrawRows.of([of for of, _ in held], [len(ids) for _, ids in held])
            _draw_some(self._draws, logits, ours, rows)
        return logits


class RowsBySlot:
    """Knows the second runner's requests by their slot, which a later request takes over without a word.

    A row of a step names its slot. `apply` gets the rows of every request, also of those that `add_request` declined.
    """

    def __init__(self, draws: Draws, req_states: Any) -> None:
        self._draws = draws
        self._prompt_len = req_states.prompt_len.np
        self._prefill_len = req_states.prefill_len.np
        most = req_states.max_num_reqs
        self._tickets = np.full(most, _FOREIGN, np.int64)
        self._seeds = np.zeros(most, np.int64)
        self._temperatures = np.ones(most, np.float32)
        self._first = np.zeros(most, np.int64)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Take over a slot; whether its request is ours."""
        arguments = _arguments_of(sampling_params)
        if arguments is None:
            self._tickets[req_idx] = _FOREIGN
            return False
        self._tickets[req_idx] = arguments.ticket
        self._seeds[req_idx] = arguments.seed
        self._temperatures[req_idx] = arguments.temperature
        self._first[req_idx] = arguments.first
        self._draws.expect(arguments.ticket)
        return True

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Draw, in place, for our rows whose token vLLM will report."""
        slots = ctx.idx_mapping_np
        lengths = ctx.seq_lens_upper_bound_np[: len(slots)]  # exact without drafts; padded behind the rows
        # Shorter than what its slot was (re)filled with, a row predicts nothing: it is a chunk of a prompt, or of what
        # a preempted request had sampled.
        ours = np.flatnonzero((lengths >= self._prefill_len[slots]) & (self._tickets[slots] != _FOREIGN))
        if len(ours):
            mine = slots[ours]
            sampled = (lengths[ours] - self._prompt_len[mine]).astype(np.int64)
            tickets = self._tickets[mine].tolist()
            rows = DrawRows(tickets, self._seeds[mine], self._temperatures[mine], self._first[mine] + sampled)
            _draw_some(self._draws, logits, ours, rows)
        return logits


def runner_v1(draws: Draws) -> type[Any]:
    """The logits processor for vLLM's first model runner, which writes to `draws`."""
    from vllm.v1.sample.logits_processor import LogitsProcessor

    class SeededDraw(RowsByChange, LogitsProcessor):  # type: ignore[misc]  # vLLM is optional: mypy does not see it
        def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
            del vllm_config, device, is_pin_memory
            super().__init__(draws)

    return SeededDraw


def runner_v2(draws: Draws) -> type[Any]:
    """The logits processor for vLLM's second model runner, which writes to `draws`."""
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

    class SeededDraw(RowsBySlot, LogitsProcessor):  # type: ignore[misc]  # vLLM is optional: mypy does not see it
        def __init__(self, vllm_config: VllmConfig, req_states: Any) -> None:
            del vllm_config
            super().__init__(draws, req_states)

    return SeededDraw


def _arguments_of(params: SamplingParams) -> DrawArguments | None:
    """What our requests carry; None of vLLM's own, as in its warm-up."""
    arguments = (params.extra_args or {}).get(ARGUMENTS)
    return arguments if isinstance(arguments, DrawArguments) else None


def _draw_some(draws: Draws, logits: Tensor, rows: npt.NDArray[np.int64], settings: DrawRows) -> None:
    """Draw some rows of a batch, and leave the others as they are."""
    if len(rows) == len(logits):
        draws.draw(logits, settings)
        return
    where = torch.from_numpy(rows)
    if logits.device.type == "cuda":
        where = where.pin_memory().to(logits.device, non_blocking=True)  # a list would be waited for
    some = logits.index_select(0, where)
    draws.draw(some, settings)
    logits.index_copy_(0, where, some)
