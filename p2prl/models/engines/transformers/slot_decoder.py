"""Continuous batching: completions join and leave between any two steps, each in a row of a slot cache.

A completion joins with the keys and values of all its tokens but the last, which is decoded together with the newest
tokens of the others. One that had to leave for lack of memory joins again in the same way, with the tokens it has.

On a CUDA card steps are recorded (`p2prl/models/engines/transformers/decode_graph.py`), and tokens are taken one step
behind: the card computes the next ones while the host looks at the last. Rows that have ended by then are decoded once
in vain.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence

import torch

from p2prl.errors import IntegrityError
from p2prl.models.engines.transformers.decode_graph import (
    GRAPH_BYTES,
    LEAST_WIDTH,
    CaptureError,
    DecodeGraphs,
    recorder_for,
)
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.row_draws import RowDraws, SampledRow
from p2prl.models.engines.transformers.slot_model import SlotModel

_JOIN_SHARE = 0.125
"""Share of the rows that must be free before some of a longer queue join: they are computed in one pass."""

_COMPACT_SHARE = 0.75
"""With an empty queue, rows that ended are dropped once no more than this share is still being sampled."""

log = logging.getLogger("p2prl.models")


class SlotDecoder:
    """Decodes with `policy`."""

    def __init__(self, policy: PolicyModel, *, capture: bool = True) -> None:
        """`capture` is whether to record steps where the device can."""
        self._policy = policy
        self._model = SlotModel(policy)
        recorder = recorder_for(policy) if capture else None
        self._graphs = None if recorder is None else DecodeGraphs(policy, self._model, recorder)
        self._running: tuple[Callable[[], tuple[list[int], list[float]]], int] | None = None
        """The step whose tokens were not taken yet, and the policy's version in it."""
        self._taken = 0
        """Tokens taken since the last call of `step`."""
        self._rows: list[SampledRow] = []  # by cache row
        self._draws = RowDraws(())
        self._tokens_N = self._positions_N = self._advance_N = torch.empty(0, dtype=torch.int64)
        self._longest = 0
        self._most_rows = 0
        """Rows that fit the memory, as the last call of `admit` said."""

    @property
    def rows(self) -> Sequence[SampledRow]:
        """Rows being decoded, with some that have ended."""
        return self._rows

    @property
    def graph_bytes(self) -> int:
        """Memory that recorded steps take besides the cache."""
        return 0 if self._graphs is None else GRAPH_BYTES

    def admit(self, queue: deque[SampledRow], limit: int) -> None:
        """Take rows from the queue while fewer than `limit` are in use, and drop rows that ended.

        Both cost as much as a step of a small model, so neither is done for a few rows out of many. Nothing changes
        when memory runs out.
        """
        self._most_rows = limit
        if self._admit(queue, limit, is_certain=self._running is None):
            return
        self._take()
        self._admit(queue, limit, is_certain=True)

    def _admit(self, queue: deque[SampledRow], limit: int, *, is_certain: bool) -> bool:
        """Take and drop rows; False when there is something to do and a step is running."""
        holes = [slot for slot, row in enumerate(self._rows) if row.ended]
        left = len(self._rows) - len(holes)
        free = max(0, limit - left)
        if len(queue) <= free or free >= _JOIN_SHARE * limit:
            joining = [queue[i] for i in range(min(len(queue), free))]
        else:
            joining = []
        if not joining and left > _COMPACT_SHARE * len(self._rows):
            return True
        if not is_certain:
            return False
        rows = [*self._rows, *joining[len(holes) :]]
        slots = [*holes[: len(joining)], *range(len(self._rows), len(rows))]
        for slot, row in zip(slots, joining, strict=True):
            rows[slot] = row
        # Joining rows are in the first holes, so none of them is moved. Rows that ended must not be widened below.
        self._close(rows, holes[len(joining) :])
        if joining:
            self._reserve(rows, max(row.size for row in rows))
            self._fill(rows, slots, joining)
        for row in joining:
            queue.popleft()
            row.load = self._policy.loads
        self._use(rows)
        return True

    def step(self) -> int:
        """Sample tokens of rows that have not ended; return how many there are since the last call."""
        if self._graphs is not None:
            try:
                return self._step_captured(self._graphs)
            except CaptureError as error:
                log.warning("decoding goes on without CUDA graphs: %s", error)
                self._take()
                self._graphs = None
                self._use(self._rows)
        taken, self._taken = self._taken, 0
        return taken + self._step_plain()

    def _step_captured(self, graphs: DecodeGraphs) -> int:
        behind = int(self._running is not None)
        launched = None
        if any(not row.ended and len(row.token_ids) + behind < row.request.max_new_tokens for row in self._rows):
            if self._longest > self._model.columns:
                self._reserve(self._rows, self._longest)
            # Powers of two, or all that the cache has: few numbers, so that few steps are recorded.
            count = min(_next_power_of_two(len(self._rows)), self._model.rows)
            width = min(_next_power_of_two(max(self._longest, LEAST_WIDTH)), self._model.columns)
            launched = graphs.launch(count, width), self._policy.version
            self._longest += 1
        self._take()
        self._running = launched
        taken, self._taken = self._taken, 0
        return taken

    def _take(self) -> None:
        """Append the tokens of the step that is running. `IntegrityError` when a logit is not a number."""
        if self._running is None or self._graphs is None:
            return
        (arrived, version), self._running = self._running, None
        tokens, logprobs = arrived()
        alive = [place for place, row in enumerate(self._rows) if not row.ended]
        if not all(math.isfinite(logprobs[place]) for place in alive):
            raise IntegrityError("the policy gives logits that are not numbers")
        for place in alive:
            self._rows[place].add(tokens[place], logprobs[place], version)
        self._taken += len(alive)
        ended = [place for place in alive if self._rows[place].ended]
        if ended:
            self._graphs.stop(ended)
            self._longest = 1 + max((row.size for row in self._rows if not row.ended), default=0)

    def _step_plain(self) -> int:
        alive = sum(self._draws.alive)
        if not alive:
            return 0
        if self._longest > self._model.columns:
            self._reserve(self._rows, self._longest)
        logits_NV = self._model.logits(self._tokens_N, self._positions_N, self._longest)
        self._tokens_N = self._draws.sample(logits_NV, self._policy.version)
        self._longest += 1
        if sum(self._draws.alive) < alive:  # rows that end now are decoded in vain, at the place they have reached
            self._advance_N = torch.tensor(self._draws.alive, device=self._policy.device)
            self._longest = max((row.size for row in self._rows if not row.ended), default=0)
        self._positions_N += self._advance_N
        return alive

    def drop_rows(self) -> None:
        """Drop all rows; the cache's memory stays."""
        self._running, self._taken = None, 0
        self._use([])

    def clear(self) -> None:
        """Drop all rows and the cache."""
        self.drop_rows()
        if self._graphs is not None:
            self._graphs.drop()
        self._model.clear()

    def stop_recording(self) -> bool:
        """Drop all rows, the cache and recorded steps, and record none from now on; False where none were."""
        if self._graphs is None:
            return False
        log.warning("decoding goes on without CUDA graphs, as memory ran out")
        self.clear()
        self._graphs = None
        return True

    def _use(self, rows: list[SampledRow]) -> None:
        device = self._policy.device
        self._rows = rows
        self._longest = max((row.size for row in rows), default=0)
        if self._graphs is not None:
            if rows:
                self._graphs.use(rows)
            return
        self._draws = RowDraws(rows)
        self._tokens_N = torch.tensor([row.last_token for row in rows], dtype=torch.int64, device=device)
        self._positions_N = torch.tensor([row.size - 1 for row in rows], dtype=torch.int64, device=device)
        self._advance_N = torch.tensor(self._draws.alive, dtype=torch.int64, device=device)

    def _reserve(self, rows: Sequence[SampledRow], longest: int) -> None:
        """Make the cache hold these rows with one more token each, the longest of `longest` with it.

        With recorded steps, as many as a bucket has: each growth makes them invalid.
        """
        most = max(row.most_tokens for row in rows)
        count, columns = len(rows), longest
        if self._graphs is not None and count > self._model.rows:
            count = max(count, min(_next_power_of_two(count), self._most_rows))
        if self._graphs is not None and columns > self._model.columns:
            columns = max(columns, min(_next_power_of_two(max(columns, LEAST_WIDTH)), most))
        self._model.reserve(count, columns, most_rows=self._most_rows, most_columns=most)

    def _fill(self, rows: Sequence[SampledRow], slots: Sequence[int], joining: Sequence[SampledRow]) -> None:
        """Compute what joining rows need, or copy it from a row with the same prompt and policy."""
        new = set(slots)
        known = {
            row.request.prompt_ids: slot
            for slot, row in enumerate(rows)
            if slot not in new and row.load == self._policy.loads
        }
        copied = [
            (known[row.request.prompt_ids], slot, row)
            for slot, row in zip(slots, joining, strict=True)
            if not row.token_ids and row.request.prompt_ids in known
        ]
        if copied:
            longest = max(len(row.request.prompt_ids) for _, _, row in copied)
            self._model.copy([source for source, _, _ in copied], [slot for _, slot, _ in copied], longest)
        done = {slot for _, slot, _ in copied}
        computed = [(slot, row.sequence[:-1]) for slot, row in zip(slots, joining, strict=True) if slot not in done]
        self._model.fill([slot for slot, _ in computed], [sequence for _, sequence in computed])

    def _close(self, rows: list[SampledRow], holes: Sequence[int]) -> None:
        """Move the last rows into the holes."""
        keep = len(rows) - len(holes)
        sources = [slot for slot in range(keep, len(rows)) if slot not in set(holes)]
        targets = [slot for slot in holes if slot < keep]
        if sources:
            self._model.copy(sources, targets, max(rows[slot].size for slot in sources))
        for source, target in zip(sources, targets, strict=True):
            rows[target] = rows[source]
        del rows[keep:]


def _next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
