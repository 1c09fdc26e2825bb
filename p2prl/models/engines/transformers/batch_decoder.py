"""Batches that are decoded to their ends, for models that cannot be decoded in slots.

Prompts are padded on the left, and the model keeps its own cache, which grows with every step. Rows join only when all
have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from p2prl.models.engines.transformers.batching import batches
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.row_draws import RowDraws, SampledRow

_COMPACT_SHARE = 0.75
"""The batch is compacted once no more than this share of its rows is still being sampled."""


class BatchDecoder:
    """Decodes with `policy`."""

    graph_bytes = 0
    """Steps are never recorded."""

    def __init__(self, policy: PolicyModel, *, max_batch_tokens: int) -> None:
        self._policy = policy
        self._max_batch_tokens = max_batch_tokens
        self._rows: list[SampledRow] = []
        self._draws = RowDraws(())
        self._cache = DynamicCache()
        self._logits_NV: Tensor | None = None  # of the prompts, before the first step
        self._tokens_N = torch.empty(0, dtype=torch.int64)
        self._mask_NL: Tensor | None = None

    @property
    def rows(self) -> Sequence[SampledRow]:
        """Rows of the batch, with some that have ended."""
        return self._rows

    def admit(self, queue: deque[SampledRow], limit: int) -> None:
        """Begin a batch of at most `limit` rows if none is being decoded; else drop rows once many have ended."""
        alive = [i for i, row in enumerate(self._rows) if not row.ended]
        if not alive:
            self._begin(queue, limit)
        elif len(alive) <= _COMPACT_SHARE * len(self._rows) and self._logits_NV is None:
            self._keep(alive)

    def step(self) -> int:
        """Sample one token of each row that has not ended; return their number."""
        alive = sum(not row.ended for row in self._rows)
        if not alive:
            return 0
        logits_NV = self._logits_NV
        if logits_NV is None:
            logits_NV = self._next_logits()
        self._tokens_N = self._draws.sample(logits_NV, self._policy.version)
        self._logits_NV = None
        return alive

    def drop_rows(self) -> None:
        """Drop all rows, and the cache with them."""
        self._rows, self._cache, self._logits_NV, self._mask_NL = [], DynamicCache(), None, None

    def clear(self) -> None:
        """Drop all rows and the cache."""
        self.drop_rows()

    def stop_recording(self) -> bool:
        """False: steps are never recorded."""
        return False

    def _begin(self, queue: deque[SampledRow], limit: int) -> None:
        self.clear()
        if not queue:
            return
        sizes = [(row.size, row.most_tokens - row.size) for row in queue]
        chosen = next(batches(sizes, self._max_batch_tokens))[:limit]
        rows = [queue[i] for i in chosen]
        self._logits_NV = self._prefill([row.sequence for row in rows])
        self._rows, self._draws = rows, RowDraws(rows)
        taken = set(chosen)
        waiting = [row for i, row in enumerate(queue) if i not in taken]
        queue.clear()
        queue.extend(waiting)

    def _keep(self, alive: Sequence[int]) -> None:
        kept = torch.tensor(alive, device=self._policy.device)
        self._cache.reorder_cache(kept)
        self._tokens_N = self._tokens_N[kept]
        self._mask_NL = None if self._mask_NL is None else self._mask_NL[kept]
        self._rows = [self._rows[i] for i in alive]
        self._draws = RowDraws(self._rows)

    def _next_logits(self) -> Tensor:
        positions_N1 = None
        if self._mask_NL is not None:
            self._mask_NL = torch.cat([self._mask_NL, self._mask_NL.new_ones(len(self._rows), 1)], dim=1)
            positions_N1 = self._mask_NL.sum(dim=1, keepdim=True) - 1
        return self._policy.forward(
            self._tokens_N[:, None], cache=self._cache, mask=self._mask_NL, positions=positions_N1, keep=1
        )[:, -1]

    def _prefill(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        """Next-token logits (N, V). Sets the cache, and the mask (N, P) unless nothing is padded.

        A sequence that several rows share, as in a group, is computed once.
        """
        unique = {sequence: i for i, sequence in enumerate(dict.fromkeys(sequences))}
        longest = max(map(len, unique))
        padded = [[0] * (longest - len(sequence)) + list(sequence) for sequence in unique]
        mask = positions = None
        if any(len(sequence) != longest for sequence in unique):
            mask = torch.tensor([[i >= longest - len(sequence) for i in range(longest)] for sequence in unique])
            mask = mask.to(device=self._policy.device, dtype=torch.int64)
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        self._cache = self._policy.new_cache()
        input_ids = torch.tensor(padded, dtype=torch.int64, device=self._policy.device)
        logits = self._policy.forward(input_ids, cache=self._cache, mask=mask, positions=positions, keep=1)[:, -1]
        if len(unique) < len(sequences):
            owners = torch.tensor([unique[sequence] for sequence in sequences], device=self._policy.device)
            self._cache.reorder_cache(owners)
            logits = logits[owners]
            mask = None if mask is None else mask[owners]
        self._mask_NL = mask
        return logits
