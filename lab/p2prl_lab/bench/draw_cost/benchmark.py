"""The draw benchmark: time of a row's draw, for each implementation, on the same logits.

It is processor time, and wall time where the logits are on a GPU. The definition computes the noise of every token, on
the CPU. The others must draw the same tokens; the table counts those that do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from p2prl.bench.device_time import CPU, median, timed
from p2prl.errors import require
from p2prl.models.seeded_draw import draw, on_device
from p2prl.models.seeded_draw.gumbel_noise import gumbel, row_states
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
    device: torch.device = CPU
    """Where the logits are."""
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
    """Median of the tokens alone: processor time with logits on a CPU, wall time with logits elsewhere."""
    ms_per_row_with_logprobs: float
    same_tokens: int
    """Rows whose token is the defined one."""


@dataclass(frozen=True, kw_only=True)
class _Batch:
    logits: Tensor
    """On the device; the rest is on the CPU, as a sampler has it."""
    temperatures: Tensor
    seeds: Tensor
    positions: Tensor


def run_draw_bench(
    config: DrawBenchConfig, *, on_progress: Callable[[str, float], None] | None = None
) -> list[DrawCost]:
    """Costs by batch size and implementation, the definition first."""
    draw.check_draw(config.device, config.vocabulary)
    costs = []
    ways = _WAYS_ON_CPU if config.device.type == "cpu" else _WAYS_ELSEWHERE
    cases = [(batch, way) for batch in config.batches for way in ways]
    for number, (size, way) in enumerate(cases):
        if on_progress is not None:
            on_progress(f"{way}, {size} rows", number / len(cases))
        batch = _batch(config, size)
        alone = _median_s(config, partial(ways[way], batch, False)) / size
        both = _median_s(config, partial(ways[way], batch, True)) / size
        same = int((ways[way](batch, False).cpu() == _definition(batch, False)).sum())
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
        logits=(torch.randn(size, config.vocabulary, generator=generator) * _SPREAD).to(config.device),
        temperatures=torch.full((size,), config.temperature),
        seeds=torch.randint(0, (1 << 63) - 1, (size,), generator=generator),
        positions=torch.randint(0, 32_768, (size,), generator=generator),
    )


def _median_s(config: DrawBenchConfig, call: Callable[[], object]) -> float:
    call()
    return median(timed(call, config.device) for _ in range(config.repeats)).on(config.device)


def _definition(batch: _Batch, with_logprobs: bool) -> Tensor:
    scaled = batch.logits.cpu() / batch.temperatures[:, None]
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


def _copied(batch: _Batch, with_logprobs: bool) -> Tensor:
    return _product(replace(batch, logits=batch.logits.cpu()), with_logprobs)


def _torch_operations(batch: _Batch, with_logprobs: bool) -> Tensor:
    states = row_states(batch.seeds.numpy(), batch.positions.numpy())
    rows = RowSettings(batch.temperatures.numpy().astype(np.float32), states)
    return torch.from_numpy(on_device.scan(batch.logits, rows, with_sums=with_logprobs).tokens)


_Ways = Mapping[str, Callable[[_Batch, bool], Tensor]]

_WAYS_ON_CPU: _Ways = MappingProxyType(
    {"definition": _definition, "seeded draw": _product, "torch operations": _torch_operations}
)
"""`torch operations` is the way on CUDA without Triton, timed here on the CPU."""

_WAYS_ELSEWHERE: _Ways = MappingProxyType(
    {
        "definition": _definition,
        "seeded draw": _product,
        "torch operations": _torch_operations,
        "drawn on the CPU": _copied,
    }
)
"""`drawn on the CPU` copies all logits there: what `seeded draw` avoids on CUDA."""
