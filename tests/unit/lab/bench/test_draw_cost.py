"""The draw benchmark: every implementation draws the defined tokens, and each case has a row."""

from __future__ import annotations

import pytest
import torch

from p2prl.errors import ConfigError
from p2prl_lab.bench.draw_cost import benchmark
from p2prl_lab.bench.draw_cost.benchmark import DrawBenchConfig, run_draw_bench
from tests.devices import DEVICES


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocabulary", [30, 5000])
def test_rows(vocabulary: int, device: str) -> None:
    told: list[str] = []
    costs = run_draw_bench(
        DrawBenchConfig(vocabulary=vocabulary, batches=(3, 5), repeats=1, device=torch.device(device)),
        on_progress=lambda text, _: told.append(text),
    )
    ways = ["definition", "seeded draw", "torch operations", *(["drawn on the CPU"] if device != "cpu" else [])]
    assert [(cost.batch, cost.way) for cost in costs] == [(size, way) for size in (3, 5) for way in ways]
    assert all(cost.same_tokens == cost.batch and cost.vocabulary == vocabulary for cost in costs)
    assert all(cost.ms_per_row > 0 and cost.ms_per_row_with_logprobs > 0 for cost in costs)
    assert len(told) == len(costs)


def test_logits_on_a_gpu_are_drawn_from_there_and_after_a_copy() -> None:
    batch = benchmark._batch(DrawBenchConfig(vocabulary=5000), 4)
    assert list(benchmark._WAYS_ELSEWHERE) == ["definition", "seeded draw", "torch operations", "drawn on the CPU"]
    wanted = benchmark._definition(batch, False)
    for way in benchmark._WAYS_ELSEWHERE.values():
        for with_logprobs in (False, True):
            assert torch.equal(way(batch, with_logprobs), wanted)


def test_settings_out_of_range() -> None:
    with pytest.raises(ConfigError):
        DrawBenchConfig(batches=(0,))
    with pytest.raises(ConfigError):
        DrawBenchConfig(temperature=0.0)
