"""Limit on the private memory of a process, enforced by the kernel, so that no peer can push a machine into swap.

`RLIMIT_DATA` counts private writable memory: heap, stacks, anonymous maps. Files mapped for reading (weights, data) are
not in it; the kernel drops them when memory is short. `RLIMIT_AS` would also count address space that is only set
aside: the Go runtime of the transport's daemon sets aside 740 MB at 64 MB in use, CUDA all of a GPU's memory.
Enforced on Linux; macOS accepts the limit and does not count maps in it.
"""

from __future__ import annotations

import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")


def limit_memory(size_bytes: int) -> None:
    """Let this process, and each of its children, have at most so much private memory. A lower limit stays."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = size_bytes if hard == resource.RLIM_INFINITY else min(size_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def limit_memory_growth(growth_bytes: int) -> None:
    """Let this process take so much more private memory than now. No-op where its present size cannot be read."""
    present = private_bytes()
    if present:
        limit_memory(present + max(0, growth_bytes))


def private_bytes() -> int:
    """Private memory of this process as `RLIMIT_DATA` counts it; 0 where the kernel does not tell."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)
