"""The sampler on Hugging Face transformers: any causal language model, on any device torch has.

Most models are decoded with continuous batching (`p2prl/models/engines/transformers/slot_decoder.py`), as a comparison
of logits decides when the first policy is there; others in batches
(`p2prl/models/engines/transformers/batch_decoder.py`). The number of rows follows the free memory. When memory runs out
nevertheless, completions in flight keep their tokens and go on with fewer at once.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import torch

from p2prl.errors import IntegrityError, MachineError
from p2prl.models.engines.transformers.batch_decoder import BatchDecoder
from p2prl.models.engines.transformers.batching import DEFAULT_BATCH_TOKENS
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.row_draws import SampledRow
from p2prl.models.engines.transformers.row_limit import (
    MOST_ROWS,
    RowLimit,
    cache_budget,
    check_granted,
)
from p2prl.models.engines.transformers.slot_decoder import SlotDecoder
from p2prl.models.engines.transformers.slot_model import check_slots
from p2prl.models.hardware.failures import is_out_of_memory, release_memory
from p2prl.models.run_model import RunModel
from p2prl.models.sampler_port import GenerationRequest, StagedWeights, StepResult, Ticket, Weights
from p2prl.protocol.rollout_group import EngineClass

_Decoder = SlotDecoder | BatchDecoder


def build_sampler(
    run: RunModel, *, device: torch.device, dtype: str, memory_bytes: int | None = None
) -> TransformersSampler:
    """The sampler of a run: see `SamplerBuilder`."""
    check_granted(run, dtype=dtype, memory_bytes=memory_bytes)
    policy = PolicyModel(run.build(device=device, dtype=dtype), run.layout)
    return TransformersSampler(policy, memory_bytes=memory_bytes)


class TransformersSampler:
    """A `Sampler` that computes with `policy`."""

    def __init__(
        self,
        policy: PolicyModel,
        *,
        memory_bytes: int | None = None,
        max_batch_tokens: int = DEFAULT_BATCH_TOKENS,
        most_rows: int = MOST_ROWS,
        capture: bool = True,
    ) -> None:
        """`memory_bytes` is the most memory to use, weights included. `max_batch_tokens` bounds the batches of models
        that are not decoded in slots. `capture` is whether to decode with CUDA graphs on a CUDA card."""
        self._policy = policy
        self._memory_bytes = memory_bytes
        self._most_rows = most_rows
        self._capture = capture
        self._tickets = itertools.count()
        self._queued: deque[SampledRow] = deque()
        self._batches = BatchDecoder(policy, max_batch_tokens=max_batch_tokens)
        self._decoder: _Decoder = self._batches
        self._watched: dict[Ticket, SampledRow] = {}
        """Rows whose end is to be told by this step, or by the next one if memory runs out in this one."""
        self._limit: RowLimit | None = None
        """None until the first policy was there to choose the decoder with."""
        self._most_tokens = 1
        """Of the longest completion in flight, with its prompt."""

    @property
    def engine_class(self) -> EngineClass:
        """See `Sampler.engine_class`."""
        return self._policy.engine_class

    @property
    def in_flight(self) -> int:
        """See `Sampler.in_flight`."""
        return len(self._queued) + len(self._decoding())

    @property
    def room(self) -> int:
        """See `Sampler.room`."""
        return self._rows_allowed() - self.in_flight

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """See `Sampler.stage`."""
        return self._policy.stage(weights, version)

    def swap(self, staged: StagedWeights) -> None:
        """See `Sampler.swap`."""
        self._policy.swap(staged)

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Ticket]:
        """See `Sampler.submit`."""
        self._policy.check_ready(requests)
        rows = [SampledRow(next(self._tickets), request) for request in requests]
        if not self.in_flight:
            self._most_tokens = 1
        self._most_tokens = max([self._most_tokens, *(row.most_tokens for row in rows)])
        self._queued += rows
        return [row.ticket for row in rows]

    @torch.inference_mode()
    def step(self) -> StepResult:
        """See `Sampler.step`."""
        if not self._queued and not self._decoder.rows:
            return StepResult(0)
        try:
            self._policy.check_ready(())
            return self._step()
        except IntegrityError:
            self.cancel()
            self._decoder.clear()  # its keys and values may not be numbers either
            raise
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._give_way(error)
            return StepResult(0)

    def cancel(self) -> None:
        """See `Sampler.cancel`."""
        self._queued.clear()
        self._watched.clear()
        self._decoder.drop_rows()

    def sleep(self) -> None:
        """See `Sampler.sleep`."""
        self.cancel()
        self._decoder.clear()
        self._policy.drop_policy()
        release_memory()

    def _decoding(self) -> list[SampledRow]:
        return [row for row in self._decoder.rows if not row.ended]

    def _step(self) -> StepResult:
        if self._limit is None:
            self._choose_decoder()
        self._watched |= {row.ticket: row for row in self._decoding()}  # some end before others join
        self._decoder.admit(self._queued, self._rows_allowed())
        self._watched |= {row.ticket: row for row in self._decoding()}
        tokens = self._decoder.step()
        rows, self._watched = self._watched, {}
        if self._limit is not None:
            if not self._decoder.graph_bytes:
                self._limit.without_graphs()
            self._limit.stepped()
        return StepResult(tokens, tuple((row.ticket, row.generation()) for row in rows.values() if row.ended))

    def _choose_decoder(self) -> None:
        check = check_slots(self._policy)
        if check is not None:
            decoder = SlotDecoder(self._policy, capture=self._capture) if check.works else None
            budget = cache_budget(
                self._policy.device,
                weight_bytes=sum(parameter.nbytes for parameter in self._policy.model.parameters()),
                memory_bytes=self._memory_bytes,
            )
            self._limit = RowLimit(
                budget_bytes=budget,
                token_bytes=check.token_bytes,
                vocabulary=self._policy.vocabulary,
                most_rows=self._most_rows,
                graph_bytes=0 if decoder is None else decoder.graph_bytes,
            )
            if decoder is not None:
                self._decoder = decoder

    def _rows_allowed(self) -> int:
        if self._limit is None:
            return self._most_rows
        return self._limit.rows(self._most_tokens)

    def _give_way(self, error: Exception) -> None:
        """Memory ran out: go on with half as many completions at once. If it was a single one, begin again with as many
        as fit without CUDA graphs.

        All keep their tokens.
        """
        rows = self._decoding()
        tried = min(len(rows) + len(self._queued), self._rows_allowed())
        if self._limit is None or (tried <= 1 and not self._decoder.stop_recording()):
            raise MachineError(
                f"memory ran out with one completion in flight: {error}",
                remedy="Close other programs, or sample for a run with a smaller model or shorter completions.",
            ) from error
        self._decoder.clear()
        self._queued.extendleft(reversed(rows))
        if tried > 1:
            self._limit.ran_out(tried)
        else:
            self._limit.without_graphs()
        release_memory()
