"""Continuous batching: completions join and leave between any two steps, each in a row of a slot cache.

A completion joins with the keys and values of all its tokens but the last, which is decoded together with the newest
tokens of the others. One that had to leave for lack of memory joins again in the same way, with the tokens it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from p2prl.models.policy_model import PolicyModel
from p2prl.models.sampled_row import RowDraws, SampledRow
from p2prl.models.slot_model import SlotModel

_JOIN_SHARE = 0.125
"""Share of the rows that must be free before some of a longer queue join: they are computed in one pass."""

_COMPACT_SHARE = 0.75
"""With an empty queue, rows that ended are dropped once no more than this share is still being sampled."""


class SlotDecoder:
    """Decodes with `policy`."""

    def __init__(self, policy: PolicyModel) -> None:
        self._policy = policy
        self._model = SlotModel(policy)
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

    def admit(self, queue: deque[SampledRow], limit: int) -> None:
        """Take rows from the queue while fewer than `limit` are in use, and drop rows that ended.

        Both cost as much as a step of a small model, so neither is done for a few rows out of many. Nothing changes
        when memory runs out.
        """
        self._most_rows = limit
        holes = [slot for slot, row in enumerate(self._rows) if row.ended]
        left = len(self._rows) - len(holes)
        free = max(0, limit - left)
        if len(queue) <= free or free >= _JOIN_SHARE * limit:
            joining = [queue[i] for i in range(min(len(queue), free))]
        else:
            joining = []
        if not joining and left > _COMPACT_SHARE * len(self._rows):
            return
        rows = [*self._rows, *joining[len(holes) :]]
        slots = [*holes[: len(joining)], *range(len(self._rows), len(rows))]
        for slot, row in zip(slots, joining, strict=True):
            rows[slot] = row
        # Joining rows are in the first holes, so none of them is moved. Rows that ended must not be widened below.
        self._close(rows, holes[len(joining) :])
        if joining:
            self._reserve(rows)
            self._fill(rows, slots, joining)
        for row in joining:
            queue.popleft()
            row.load = self._policy.loads
        self._use(rows)

    def step(self) -> int:
        """Sample one token of each row that has not ended; return their number."""
        alive = sum(self._draws.alive)
        if not alive:
            return 0
        if self._longest > self._model.columns:
            self._reserve(self._rows)
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
        self._use([])

    def clear(self) -> None:
        """Drop all rows and the cache."""
        self.drop_rows()
        self._model.clear()

    def _use(self, rows: list[SampledRow]) -> None:
        device = self._policy.device
        self._rows = rows
        self._draws = RowDraws(rows)
        self._tokens_N = torch.tensor([row.last_token for row in rows], dtype=torch.int64, device=device)
        self._positions_N = torch.tensor([row.size - 1 for row in rows], dtype=torch.int64, device=device)
        self._advance_N = torch.ones_like(self._positions_N)
        self._longest = max((row.size for row in rows), default=0)

    def _reserve(self, rows: Sequence[SampledRow]) -> None:
        """Make the cache hold these rows with one more token each."""
        most = max(row.most_tokens for row in rows)
        longest = max(row.size for row in rows)
        self._model.reserve(len(rows), longest, most_rows=self._most_rows, most_columns=most)

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
