"""Time of a piece of work on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds that a piece of work took."""

    cpu_s: float
    """Processor time of this process."""
    wall_s: float

    def on(self, device: torch.device) -> float:
        """The figure that counts: processor time on a CPU, wall time elsewhere, where the processor only waits."""
        return self.cpu_s if device.type == "cpu" else self.wall_s


class Stopwatch:
    """Runs from its making, when the device has nothing left to do."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        _wait_for(device)
        self._began, self._used = time.perf_counter(), time.process_time()

    def spent(self) -> Spent:
        """Time until now, once the device has finished what it was given."""
        _wait_for(self._device)
        return Spent(cpu_s=time.process_time() - self._used, wall_s=time.perf_counter() - self._began)


def timed(work: Callable[[], object], device: torch.device) -> Spent:
    """Do the work, and wait until the device has finished it."""
    watch = Stopwatch(device)
    work()
    return watch.spent()


def median(times: Iterable[Spent]) -> Spent:
    """The medians of both figures."""
    kept = list(times)
    return Spent(cpu_s=statistics.median(t.cpu_s for t in kept), wall_s=statistics.median(t.wall_s for t in kept))


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
