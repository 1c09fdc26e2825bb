"""The draw benchmark: every implementation draws the defined tokens, and each case has a row."""

from __future__ import annotations

import pytest

from p2prl.bench.draw_cost.benchmark import DrawBenchConfig, run_draw_bench
from p2prl.errors import ConfigError


@pytest.mark.parametrize("vocabulary", [30, 5000])
def test_rows(vocabulary: int) -> None:
    told: list[str] = []
    costs = run_draw_bench(
        DrawBenchConfig(vocabulary=vocabulary, batches=(3, 5), repeats=1),
        on_progress=lambda text, _: told.append(text),
    )
    ways = ["definition", "seeded draw", "torch operations"]
    assert [(cost.batch, cost.way) for cost in costs] == [(size, way) for size in (3, 5) for way in ways]
    assert all(cost.same_tokens == cost.batch and cost.vocabulary == vocabulary for cost in costs)
    assert all(cost.ms_per_row > 0 and cost.ms_per_row_with_logprobs > 0 for cost in costs)
    assert len(told) == len(costs)


def test_settings_out_of_range() -> None:
    with pytest.raises(ConfigError):
        DrawBenchConfig(batches=(0,))
    with pytest.raises(ConfigError):
        DrawBenchConfig(temperature=0.0)
