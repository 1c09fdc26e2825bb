"""Free memory of a device, before anything large is put on it."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

_CGROUP_FILES = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"), "inactive_file"),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        "total_inactive_file",
    ),
)
"""Limit and use of a container's memory, which the machine's free memory does not show, and the part of its use that
caches files: in the `memory.stat` beside them, given back when programs need it."""


def free_memory(device: torch.device) -> int:
    """Bytes that a program may still allocate on this device. MPS shares the machine's memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return min(int(psutil.virtual_memory().available), *(container_room(*files) for files in _CGROUP_FILES))


def container_room(limit: Path, used: Path, cached: str) -> int:
    """Bytes left in a container; more than any machine has where there is no limit."""
    unlimited = 1 << 62
    try:
        most = limit.read_text().strip()
        if not most.isdecimal():
            return unlimited
        return max(0, int(most) - int(used.read_text()) + _statistic(limit.with_name("memory.stat"), cached))
    except OSError:
        return unlimited


def _statistic(path: Path, name: str) -> int:
    """The number after `name` in a file of names and numbers; 0 without one."""
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
