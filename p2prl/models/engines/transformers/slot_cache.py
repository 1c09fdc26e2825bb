"""Keys and values of rows that begin and end at different times, in one tensor per layer.

A cache row holds one completion from column 0 on. Every decoding step writes one column of each row, each at its own
place, and attends to the columns of the longest row in use; a mask hides what lies beyond a row's end. So a row can be
filled, moved or given up without touching the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

_COLUMNS = 64
"""Columns are allocated in multiples of this, and at least half as many again: growing copies the cache."""


class _Step:
    """Place of the tokens of one decoding step, shared by all layers."""

    def __init__(self) -> None:
        self.cells_N = torch.empty(0, dtype=torch.int64)
        """Index of the column to write, counted over all rows."""
        self.width = 0
        """Columns to attend to."""


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer. Keys and values are (rows, columns, heads, D), so that a token is contiguous."""

    is_sliding = False

    def __init__(self, step: _Step) -> None:
        super().__init__()
        self.is_initialized: bool = False
        self._step = step
        self._shape = (0, 0)
        self._cells: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def reserve(self, rows: int, columns: int) -> None:
        """Allocate this much, and keep what is held within it; at once if the size of a token is known."""
        self._shape = (rows, columns)
        if self.is_initialized:
            self._hold(_resized(self.keys, rows, columns), _resized(self.values, rows, columns))

    def fill(self, slots_N: Tensor, keys_NLHD: Tensor, values_NLHD: Tensor) -> None:
        """Write rows from their first column on."""
        self.lazy_initialization(keys_NLHD.transpose(1, 2), values_NLHD.transpose(1, 2))
        self.keys[slots_N, : keys_NLHD.shape[1]] = keys_NLHD
        self.values[slots_N, : values_NLHD.shape[1]] = values_NLHD

    def copy_rows(self, sources_N: Tensor, targets_N: Tensor, columns: int) -> None:
        """Copy the first columns of rows."""
        if self.is_initialized:
            self.keys[targets_N, :columns] = self.keys[sources_N, :columns]
            self.values[targets_N, :columns] = self.values[sources_N, :columns]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate, once the size of a token is known. Zeros: what a mask hides must still be a number."""
        if not self.is_initialized:
            self._hold(
                key_states.new_zeros(*self._shape, key_states.shape[1], key_states.shape[3]),
                value_states.new_zeros(*self._shape, value_states.shape[1], value_states.shape[3]),
            )
            self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write one token of each row; return the columns in use. `key_states` (N, heads, 1, D)."""
        del args, kwargs
        self.lazy_initialization(key_states, value_states)
        count, width = key_states.shape[0], self._step.width
        for cells, new in zip(self._cells, (key_states, value_states), strict=True):
            cells.index_copy_(0, self._step.cells_N, new.reshape(count, -1))
        return self.keys[:count, :width].transpose(1, 2), self.values[:count, :width].transpose(1, 2)

    def _hold(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self._cells = keys.flatten(2).flatten(0, 1), values.flatten(2).flatten(0, 1)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._step.width - 1 + query_length, 0

    def get_seq_length(self) -> int:
        return self._step.width - 1

    def get_max_length(self) -> int:
        return self._shape[1]


class SlotCache(Cache):  # type: ignore[misc]
    """The cache of a model with `layers` layers."""

    def __init__(self, layers: int) -> None:
        self._step = _Step()
        super().__init__(layers=[_SlotLayer(self._step) for _ in range(layers)])
        self.columns = 0
        """Columns allocated."""
        self.rows = 0
        """Rows allocated."""
        self._first_cells_R = torch.empty(0, dtype=torch.int64)
        """Index of the first column of each row, counted over all rows. It stays where it is until the cache moves."""

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token; 0 before any were written."""
        held = [part for layer in self.layers if layer.is_initialized for part in (layer.keys, layer.values)]
        return sum(part[0, 0].numel() * part.element_size() for part in held)

    def reserve(self, rows: int, columns: int, *, most_rows: int, most_columns: int) -> None:
        """Hold the first `rows` rows, which are all in use, with at least this many columns.

        A growth allocates spare rows and columns, as it copies the cache, and keeps spare ones. None are beyond
        `most_rows` and `most_columns`: many rows of short completions must not all become as wide as a few long ones.
        """
        if rows <= self.rows and columns <= self.columns:
            return
        spare_rows, spare_columns = self.rows, self.columns
        if rows > self.rows:
            spare_rows = 2 * self.rows
        if columns > self.columns:
            spare_columns = -(-max(columns, self.columns * 3 // 2) // _COLUMNS) * _COLUMNS
        self.rows = max(rows, min(spare_rows, most_rows))
        self.columns = max(columns, min(spare_columns, most_columns))
        for layer in self.layers:
            layer.reserve(self.rows, self.columns)
        self._first_cells_R = torch.empty(0, dtype=torch.int64)

    def begin_step(self, positions_N: Tensor, width: int) -> None:
        """The next forward pass writes the first rows at these columns, and attends to `width` columns."""
        if len(self._first_cells_R) != self.rows:
            self._first_cells_R = torch.arange(self.rows, device=positions_N.device) * self.columns
        self._step.cells_N, self._step.width = self._first_cells_R[: len(positions_N)] + positions_N, width

    def fill(self, slots: Sequence[int], computed: DynamicCache, owners: Sequence[int]) -> None:
        """Write rows `owners` of a cache that was computed in one pass into `slots`."""
        for own, other in zip(self.layers, computed.layers, strict=True):
            index_N = torch.tensor(owners, device=other.keys.device)
            slots_N = torch.tensor(slots, device=other.keys.device)
            own.fill(slots_N, other.keys.transpose(1, 2)[index_N], other.values.transpose(1, 2)[index_N])

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int], columns: int) -> None:
        """Copy the first columns of rows to other rows."""
        for layer in self.layers:
            if layer.is_initialized:
                device = layer.keys.device
                layer.copy_rows(torch.tensor(sources, device=device), torch.tensor(targets, device=device), columns)


def _resized(held: Tensor, rows: int, columns: int) -> Tensor:
    resized = held.new_zeros(rows, columns, *held.shape[2:])
    kept = held[:rows, :columns]
    resized[: kept.shape[0], : kept.shape[1]] = kept
    return resized
