"""Time on a device: which of the two clocks counts, and that a work's own time is measured."""

from __future__ import annotations

import time

import pytest
import torch

from p2prl.bench.device_time import CPU, Spent, Stopwatch, median, timed


def test_processor_time_counts_on_a_cpu_alone() -> None:
    spent = Spent(cpu_s=2.0, wall_s=3.0)
    assert spent.on(CPU) == 2.0
    assert spent.on(torch.device("cuda")) == 3.0
    assert spent.on(torch.device("mps")) == 3.0


def test_work_is_timed_by_both_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {"process_time": 5.0, "perf_counter": 100.0}
    for name in clocks:
        monkeypatch.setattr(time, name, lambda name=name: clocks[name])

    def work() -> None:
        clocks["process_time"] += 1.5
        clocks["perf_counter"] += 4.0

    assert timed(work, CPU) == Spent(cpu_s=1.5, wall_s=4.0)


def test_a_gpu_is_waited_for_before_either_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: told.append(f"wait for {device}"))
    watch = Stopwatch(torch.device("cuda:1"))
    told.append("work")
    watch.spent()
    assert told == ["wait for cuda:1", "work", "wait for cuda:1"]


def test_medians_are_of_each_clock_alone() -> None:
    times = [Spent(cpu_s=1.0, wall_s=9.0), Spent(cpu_s=3.0, wall_s=7.0), Spent(cpu_s=2.0, wall_s=8.0)]
    assert median(times) == Spent(cpu_s=2.0, wall_s=8.0)
