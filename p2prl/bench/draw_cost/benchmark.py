"""The draw benchmark: processor time of a row's draw, for each implementation, on the same logits.

The definition computes the noise of every token. The others must draw the same tokens; the table counts those that do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from p2prl.errors import require
from p2prl.models.gumbel_noise import gumbel, row_states
from p2prl.models.seeded_draw import draw, on_device
from p2prl.models.seeded_draw.rows import RowSettings

_SPREAD = 2.0
"""Standard deviation of the logits."""


@dataclass(frozen=True, kw_only=True)
class DrawBenchConfig:
    """Logits to draw from."""

    vocabulary: int = 151_936
    batches: tuple[int, ...] = (8, 32)
    repeats: int = 15
    temperature: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        require("vocabulary", self.vocabulary, 1 <= self.vocabulary <= 1 << 20, "1 to 1048576")
        require("batches", self.batches, all(1 <= batch <= 1024 for batch in self.batches), "1 to 1024 rows each")
        require("repeats", self.repeats, 1 <= self.repeats <= 1000, "1 to 1000")
        require("temperature", self.temperature, 0 < self.temperature < float("inf"), "above 0")


@dataclass(frozen=True, kw_only=True)
class DrawCost:
    """One implementation at one batch size."""

    way: str
    batch: int
    vocabulary: int
    ms_per_row: float
    """Median processor time of the tokens alone."""
    ms_per_row_with_logprobs: float
    same_tokens: int
    """Rows whose token is the defined one."""


@dataclass(frozen=True, kw_only=True)
class _Batch:
    logits: Tensor
    temperatures: Tensor
    seeds: Tensor
    positions: Tensor


def run_draw_bench(
    config: DrawBenchConfig, *, on_progress: Callable[[str, float], None] | None = None
) -> list[DrawCost]:
    """Costs by batch size and implementation, the definition first."""
    draw.check_draw(torch.device("cpu"), config.vocabulary)
    costs = []
    cases = [(batch, way) for batch in config.batches for way in _WAYS]
    for number, (size, way) in enumerate(cases):
        if on_progress is not None:
            on_progress(f"{way}, {size} rows", number / len(cases))
        batch = _batch(config, size)
        alone = _median_s(config.repeats, partial(_WAYS[way], batch, False)) / size
        both = _median_s(config.repeats, partial(_WAYS[way], batch, True)) / size
        same = int((_WAYS[way](batch, False) == _definition(batch, False)).sum())
        costs.append(
            DrawCost(
                way=way,
                batch=size,
                vocabulary=config.vocabulary,
                ms_per_row=alone * 1e3,
                ms_per_row_with_logprobs=both * 1e3,
                same_tokens=same,
            )
        )
    return costs


def _batch(config: DrawBenchConfig, size: int) -> _Batch:
    generator = torch.Generator().manual_seed(config.seed)
    return _Batch(
        logits=torch.randn(size, config.vocabulary, generator=generator) * _SPREAD,
        temperatures=torch.full((size,), config.temperature),
        seeds=torch.randint(0, (1 << 63) - 1, (size,), generator=generator),
        positions=torch.randint(0, 32_768, (size,), generator=generator),
    )


def _median_s(repeats: int, call: Callable[[], object]) -> float:
    call()
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        spent.append(time.process_time() - began)
    return statistics.median(spent)


def _definition(batch: _Batch, with_logprobs: bool) -> Tensor:
    scaled = batch.logits / batch.temperatures[:, None]
    noise = (
        gumbel(seed, at, scaled.shape[1])[0, 0]
        for seed, at in zip(batch.seeds[:, None], batch.positions[:, None, None], strict=True)
    )
    tokens = torch.stack([(row + noise_V).argmax() for row, noise_V in zip(scaled, noise, strict=True)])
    if with_logprobs:
        torch.log_softmax(scaled, dim=-1).gather(1, tokens[:, None])
    return tokens


def _product(batch: _Batch, with_logprobs: bool) -> Tensor:
    settings = (batch.logits, batch.temperatures, batch.seeds, batch.positions)
    return draw.draw_with_logprobs(*settings)[0] if with_logprobs else draw.draw(*settings)


def _torch_operations(batch: _Batch, with_logprobs: bool) -> Tensor:
    states = row_states(batch.seeds.numpy(), batch.positions.numpy())
    rows = RowSettings(batch.temperatures.numpy().astype(np.float32), states)
    return torch.from_numpy(on_device.scan(batch.logits, rows, with_sums=with_logprobs).tokens)


_WAYS: dict[str, Callable[[_Batch, bool], Tensor]] = {
    "definition": _definition,
    "seeded draw": _product,
    "torch operations": _torch_operations,
}
"""`torch operations` is the way on CUDA, timed here on the CPU."""
