"""Number of completions that may be decoded at once, from memory."""

from __future__ import annotations

import math

import torch

from p2prl.errors import MachineError
from p2prl.models.hardware.device_choice import free_memory
from p2prl.models.run_model import RunModel
from p2prl.models.weights.layout import TORCH_DTYPES, layout_of

MOST_ROWS = 256
"""More rows make no machine faster that was measured, and their groups are staler on arrival."""

_SHARE = {"cuda": 0.9, "cpu": 0.5, "mps": 0.5}
"""Share of the free memory for keys, values and logits. The machine's own memory is shared with other programs."""

_LOGIT_BYTES = 32
"""Memory for each logit of a row: the logits in two dtypes, and the draw's temporaries."""

_STEPS_TO_GROW = 4096
"""Steps after which a limit that memory ran out above is doubled: other programs come and go."""


class RowLimit:
    """Rows that fit, by the longest of them."""

    def __init__(
        self, *, budget_bytes: int, token_bytes: int, vocabulary: int, most_rows: int = MOST_ROWS, graph_bytes: int = 0
    ) -> None:
        """`token_bytes` is the size of keys and values of one token; `graph_bytes` is what recorded steps take of the
        budget."""
        self._budget = budget_bytes
        self._graph_bytes = graph_bytes
        self._token_bytes = token_bytes
        self._row_bytes = vocabulary * _LOGIT_BYTES
        self._ceiling = self._most = most_rows
        self._steps = 0

    def rows(self, tokens: int) -> int:
        """Rows of up to `tokens` tokens that fit; at least one, so that work goes on."""
        fit = (self._budget - self._graph_bytes) // (tokens * self._token_bytes + self._row_bytes)
        return max(1, min(self._most, fit))

    def ran_out(self, rows: int) -> None:
        """Memory ran out with this number of rows: use half."""
        self._most = max(1, rows // 2)
        self._steps = 0

    def without_graphs(self) -> None:
        """Steps are not recorded any more: what they took is free, and memory that ran out did so beside them."""
        if self._graph_bytes:
            self._graph_bytes = 0
            self._most, self._steps = self._ceiling, 0

    def stepped(self) -> None:
        """A step succeeded."""
        self._steps += 1
        if self._steps == _STEPS_TO_GROW:
            self._most, self._steps = min(self._ceiling, 2 * self._most), 0


def check_granted(run: RunModel, *, dtype: str, memory_bytes: int | None) -> None:
    """`MachineError` when the weights and one completion of the run's longest length exceed what is granted.

    Checked before the model is built: it would take what it needs whatever was granted.
    """
    if memory_bytes is None:
        return
    weights = layout_of(run.skeleton, dtype).size_bytes
    token = run.cached_numbers * TORCH_DTYPES[dtype].itemsize
    row = run.longest_completion * token + run.skeleton.config.get_text_config().vocab_size * _LOGIT_BYTES
    if weights + row > memory_bytes:
        raise MachineError(
            f"sampling needs {_gigabytes(weights + row)} GB, {_gigabytes(weights)} of them for the weights, and"
            f" {_gigabytes(memory_bytes)} GB are granted",
            remedy=f"Give --vram-gb {_gigabytes(weights + row)} or more, or join a run with a smaller model.",
        )


def _gigabytes(size: int) -> float:
    """Rounded up, so that what a message asks for is enough."""
    return math.ceil(size / 1e6) / 1e3


def cache_budget(device: torch.device, *, weight_bytes: int, memory_bytes: int | None) -> int:
    """Bytes for keys, values, logits and recorded steps; the weights are on `device` already.

    `memory_bytes` is what the machine's owner grants the engine, weights included.
    """
    budget = int(_SHARE[device.type] * free_memory(device))
    if memory_bytes is not None:
        budget = min(budget, memory_bytes - weight_bytes)
    return max(0, budget)
