"""Peak memory of a piece of work: allocated bytes on CUDA, resident bytes of the process on a CPU."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import psutil
import torch

from p2prl.models.hardware.heap import trim_heap

_POLL_S = 0.002
"""Interval of reading the process's size. Tensors that matter here live for longer."""


def peak_bytes_beyond(work: Callable[[], object], *, held: int, device: torch.device) -> int:
    """Bytes held at the peak of `work`, beyond the `held` ones."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return int(torch.cuda.max_memory_allocated(device)) - held
    done = threading.Event()
    peak = 0

    def poll() -> None:
        nonlocal peak
        process = psutil.Process()
        while not done.wait(_POLL_S):
            peak = max(peak, process.memory_info().rss)

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    try:
        work()
    finally:
        done.set()
        poller.join()
    return peak - held


def held_bytes(device: torch.device) -> int:
    """Bytes held now."""
    gc.collect()
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    trim_heap()  # what it keeps of earlier work would hide a part of the next peak
    return int(psutil.Process().memory_info().rss)
