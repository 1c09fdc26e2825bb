"""Ranges of the settings of tasks and scorers: what lies at an end of one passes, and what lies beyond is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.sandbox.overrun_ledger import SHORTEST_LIMIT_S
from p2prl.tasks.sandbox.pool import PoolConfig
from p2prl.tasks.task_spec import SmallModel

POOL, MODEL = PoolConfig(), SmallModel(symbols="ab", context=8)
RANGES: list[tuple[Any, str, tuple[object, ...], tuple[object, ...]]] = [
    (POOL, "workers", (0, 256), (-1, 257)),
    (POOL, "limit_s", (SHORTEST_LIMIT_S, 60.0), (0.99 * SHORTEST_LIMIT_S, 60.1)),
    (POOL, "memory_mb", (16, 1_000_000), (15, 1_000_001)),
    (MODEL, "symbols", ("a",), ("", "aba")),
    (MODEL, "context", (1,), (0,)),
    (MODEL, "width", (2,), (0, 3)),  # of two heads
    (MODEL, "feedforward", (1,), (0,)),
    (MODEL, "layers", (1,), (0,)),
    (MODEL, "heads", (1, 48), (0, 5)),
]


@pytest.mark.parametrize(("config", "name", "legal", "illegal"), RANGES)
def test_the_ends_of_a_range(config: Any, name: str, legal: tuple[object, ...], illegal: tuple[object, ...]) -> None:
    for value in legal:
        assert getattr(replace(config, **{name: value}), name) == value
    for value in illegal:
        with pytest.raises(ConfigError, match=name if name != "width" or value == 0 else "heads"):
            replace(config, **{name: value})


@pytest.mark.parametrize(("cores", "workers"), [(1, 2), (4, 2), (6, 3), (8, 4), (64, 4), (None, 2)])
def test_half_the_cores_score_but_two_to_four(cores: int | None, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert PoolConfig().worker_count() == workers
    assert PoolConfig(workers=9).worker_count() == 9
