"""The publish benchmark on a model of a few thousand parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from p2prl.bench.publish import benchmark
from p2prl.bench.publish.benchmark import (
    BLOCKED_BOUND_S,
    HEAD_BOUND_S,
    MEMORY_BOUND_BYTES,
    REBUILD_BOUND_CPU_S,
    SILENT_BOUND_S,
    SWITCH_BOUND_S,
    PublishBenchConfig,
    PublishReport,
    run_publish_bench,
)
from p2prl.errors import ConfigError
from p2prl.models.small_models.tiny_models import tiny_model
from tests.devices import DEVICES

AT_THE_BOUNDS = PublishReport(
    bytes=1000,
    versions=2,
    changed_share=0.01,
    trainer_blocked_s=BLOCKED_BOUND_S,
    head_s=HEAD_BOUND_S,
    head_longest_s=9.0,
    written_s=9.0,
    head_cpu_s=9.0,
    peak_bytes_beyond_weights=MEMORY_BOUND_BYTES,
    patch_bytes=10,
    store_bytes=1020,
    switch_s=SWITCH_BOUND_S,
    serve_s=9.0,
    loop_silent_s=SILENT_BOUND_S,
    rebuild_s=9.0,
    rebuild_cpu_s=REBUILD_BOUND_CPU_S,
    worker_bytes=2000,
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_versions_are_published_and_measured(monkeypatch: pytest.MonkeyPatch, dtype: str, device: str) -> None:
    model = tiny_model(seed=1).model
    monkeypatch.setattr(benchmark, "random_model", lambda name, *, device, **_: model.to(device))
    told: list[float] = []
    report = run_publish_bench(
        # Tiny weights are few: at this rate each version changes some.
        PublishBenchConfig(versions=5, dtype=dtype, learning_rate=1e-4, device=torch.device(device)),
        on_progress=lambda _, share: told.append(share),
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert report.bytes == parameters * (2 if dtype == "bfloat16" else 4)
    assert report.versions == 5
    assert 0.1 < report.changed_share < 1
    assert told == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert 0 < report.patch_bytes < 5 * report.bytes
    assert report.bytes < report.store_bytes < 7 * report.bytes, "the weights once, and five inverse patches"
    assert report.head_longest_s >= report.head_s > 0
    assert report.written_s > report.head_s, "the head does not wait for the weights file"
    assert report.rebuild_s > 0
    assert report.worker_bytes >= report.bytes
    assert min(report.trainer_blocked_s, report.head_cpu_s, report.switch_s, report.serve_s, report.loop_silent_s) > 0


@pytest.mark.parametrize(
    "worse",
    [
        {"trainer_blocked_s": BLOCKED_BOUND_S + 0.01},
        {"head_s": HEAD_BOUND_S + 0.01},
        {"switch_s": SWITCH_BOUND_S + 0.01},
        {"loop_silent_s": SILENT_BOUND_S + 0.01},
        {"rebuild_cpu_s": REBUILD_BOUND_CPU_S + 0.01},
        {"peak_bytes_beyond_weights": MEMORY_BOUND_BYTES + 1},
        {"store_bytes": 1021},
    ],
)
def test_every_demand_decides(worse: dict[str, Any]) -> None:
    assert AT_THE_BOUNDS.met
    assert not replace(AT_THE_BOUNDS, **worse).met


@pytest.mark.parametrize("wrong", [{"model": "7b"}, {"versions": 1}, {"versions": 1001}, {"learning_rate": 0.0}])
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PublishBenchConfig(**wrong)
