"""Limits of a worker on this machine: the disk and memory that its owner allows, or just what the run needs.

All that a run may store is in one figure: policy versions, patches, files and data, group bodies, finished work, logs.
It is settled before a byte is fetched; the node keeps to it (`p2prl.swarm.disk_quota`), and so does the spool.
"""

from __future__ import annotations

import math
import os
import shutil
import stat
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from p2prl.client.spool import SpoolConfig
from p2prl.config.requirements import PROGRAM_BYTES, Requirements
from p2prl.controls.limits import Origin
from p2prl.errors import ConfigError, MachineError
from p2prl.memory_limit import limit_memory_growth
from p2prl.net.process.network_config import NETWORK_MEMORY_BYTES
from p2prl.protocol.kinds import Role
from p2prl.quantity_text import size_text
from p2prl.swarm.groups.groups_config import GroupBodyConfig

FREE_SHARE = 0.9
"""Of the free disk, the most that a run may take when the owner names no figure."""

SMALL_FILES_BYTES = 32_000_000
"""Set aside for logs, the status file and the manifests beside the weights, of which each has at most 254 kB."""

MIRROR_BYTES = 256_000_000
"""Most disk for a mirror of the run's ledger, for which 256 MB hold some two million receipts. A hostile learner's
ledger must not fill the disk."""

MIRROR_SHARE = 4
"""A mirror takes at most one part in this many of what the run leaves of the disk."""

LEAST_SPOOL_BYTES = 16_000_000
"""Finished work for which there must be room: one group of the largest size and a little more."""

LEAST_NETWORK_BYTES = 256_000_000
"""Memory below which the network process may not be limited: it starts with 37 MB, and half a frame of every inbound
stream was seen to hold 206 MB."""

_SLACK_BYTES = 256_000_000
"""Private memory set aside and not used: stacks of threads, arenas of the allocator."""

_KEPT = "p2prl limits shows whether a limit is kept."

_OPTIONS = {"disk": "--disk-gb", "ram": "--ram-gb"}

_SOURCES: Mapping[Origin, str] = {
    "default": "{option}",
    "option": "{option}",
    "command": "p2prl limits {limit}",
    "file": "{limit} in config.toml",
}

_RAISED: Mapping[Origin, str] = {
    "default": "Give it {gb} GB or more, or leave {option} out.",
    "option": "Give it {gb} GB or more, or leave {option} out.",
    "command": "Set p2prl limits {limit}={gb}GB or more, or p2prl limits {limit}=default.",
    "file": 'Set {limit} = "{gb}GB" or more there, or take the line out.',
}

_MOST_GB = 1e6
"""A petabyte: more is a typing error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineLimits:
    """What the owner allows, as options of the command line; 0 leaves a figure to the run's needs."""

    disk_gb: float = 0.0
    """GB (10⁹ bytes) for everything the run stores."""
    ram_gb: float = 0.0
    """GB of memory for all processes together."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Where a figure comes from, by the limit's name; from an option of the start where it is not here."""

    def source(self, limit: str) -> str:
        """Name what set a limit, in the words of its owner."""
        return _SOURCES[self.origins.get(limit, "option")].format(option=_OPTIONS[limit], limit=limit)

    def raised(self, limit: str, least: int) -> str:
        """Say how to raise a limit to `least` bytes, or to take it away: a remedy."""
        gb = _gb_above(least)
        return _RAISED[self.origins.get(limit, "option")].format(option=_OPTIONS[limit], limit=limit, gb=gb)

    def __post_init__(self) -> None:
        for name, value in (("--disk-gb", self.disk_gb), ("--ram-gb", self.ram_gb)):
            if not (math.isfinite(value) and 0.0 <= value <= _MOST_GB):
                raise ConfigError(
                    f"{name} {value:g} is outside 0 to {_MOST_GB:g}", remedy="0 takes what the run needs."
                )

    @property
    def ram_bytes(self) -> int:
        """Bytes of memory for all processes; 0 without a figure."""
        return round(self.ram_gb * 1e9)

    @property
    def network_memory_bytes(self) -> int:
        """Private memory of the network process, and as much again of its daemon."""
        if not self.ram_gb:
            return NETWORK_MEMORY_BYTES
        return min(NETWORK_MEMORY_BYTES, max(LEAST_NETWORK_BYTES, self.ram_bytes // 8))


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskPlan:
    """Shares of a worker's disk, in bytes."""

    total_bytes: int
    """All of it: the figure that its owner is shown."""
    network_bytes: int
    """For what the network process stores: weights, patches, files, data and group bodies."""
    spool_bytes: int
    """For finished work that no learner has confirmed."""
    mirror_bytes: int = 0
    """For a mirror of the ledger."""


def least_disk(needs: Requirements, role: Role, *, has_base: bool = False) -> int:
    """Bytes of disk without which a worker does not start."""
    spool = LEAST_SPOOL_BYTES if role is Role.VOLUNTEER else 0
    return needs.least_disk_bytes(has_base=has_base) + _others(role) + spool


def _others(role: Role) -> int:
    return SMALL_FILES_BYTES + (GroupBodyConfig().disk_bytes if role is Role.VALIDATOR else 0)


def plan_disk(
    needs: Requirements,
    role: Role,
    limits: MachineLimits,
    directory: Path,
    *,
    has_base: bool = False,
    mirrors: bool = False,
) -> DiskPlan:
    """Divide the disk of a worker; `directory` is its folder of the run, `has_base` as in `peer_network`.
    With `mirrors` it keeps a copy of the ledger, as far as there is room.

    `ConfigError` when the owner's figure is too small for the run, `MachineError` when the free disk is.
    """
    spools = role is Role.VOLUNTEER
    others = _others(role)
    least_spool = LEAST_SPOOL_BYTES if spools else 0
    least = least_disk(needs, role, has_base=has_base) - least_spool
    room = _room(directory)
    if limits.disk_gb:
        total = round(limits.disk_gb * 1e9)
        if total < least + least_spool:
            raise ConfigError(
                f"this run needs {size_text(least + least_spool)} of disk, and {limits.source('disk')} allows"
                f" {size_text(total)}",
                remedy=f"{limits.raised('disk', least + least_spool)} {_KEPT}",
            )
        total = min(total, room)
    else:
        spool = SpoolConfig().max_bytes if spools else 0
        wanted = needs.disk_bytes + needs.weights_bytes + others + spool + (MIRROR_BYTES if mirrors else 0)
        total = min(wanted, int(FREE_SHARE * room))
    if total < least + least_spool:
        raise MachineError(
            f"this run needs {size_text(least + least_spool)} of disk in {directory}; {size_text(room)} are free, and "
            f"{size_text(total)} of them may be used",
            remedy="Free some, or give a folder on a larger disk with --home.",
        )
    mirror = min(MIRROR_BYTES, (total - least - least_spool) // MIRROR_SHARE) if mirrors else 0
    rest = total - mirror
    spool = max(least_spool, min(SpoolConfig().max_bytes, rest // 4, rest - least)) if spools else 0
    network = rest - spool - SMALL_FILES_BYTES
    return DiskPlan(total_bytes=total, network_bytes=network, spool_bytes=spool, mirror_bytes=mirror)


def check_memory(needs: Requirements, limits: MachineLimits, *, on_cpu: bool, available_bytes: int) -> None:
    """Refuse a run whose model does not fit the memory, before any of it is allocated or downloaded.

    `on_cpu` says that the engine's weights are in this memory, `available_bytes` is what programs may still take.
    `ConfigError` for the owner's figure, `MachineError` otherwise.
    """
    private = needs.private_bytes(on_cpu=on_cpu)
    if limits.ram_gb and private + 2 * limits.network_memory_bytes > limits.ram_bytes:
        raise _too_little_memory("this run", private, limits)
    if private > available_bytes:
        raise MachineError(
            f"this run needs {size_text(private)} of memory and {size_text(available_bytes)} are available",
            remedy="Close other programs, or take part in a run with a smaller model.",
        )


def _too_little_memory(what: str, estimate: int, limits: MachineLimits) -> ConfigError:
    """`estimate` is what its processes take. A limit is larger: what strangers send must fit below it as well."""
    room = 2 * limits.network_memory_bytes
    least = estimate + room
    return ConfigError(
        f"{what} needs an estimated {size_text(estimate)}, and {size_text(room)} more as room for its network below a "
        f"limit: {size_text(least)} of memory, and {limits.source('ram')} allows {size_text(limits.ram_bytes)}",
        remedy=f"{limits.raised('ram', least)} {_KEPT}",
    )


def available_memory() -> int:
    """Bytes of memory that this process can have, with what it has already and what can be swapped out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a confined process may not read how much was swapped so far
        free = psutil.virtual_memory().available + psutil.swap_memory().free
    return int(free) + psutil.Process().memory_info().rss


def sampling_memory(limits: MachineLimits, *, on_cpu: bool) -> int | None:
    """Memory for weights and samples on a CPU, bytes; None without a figure. Enforces it, as `enforce_memory`."""
    enforce_memory(limits, on_cpu=on_cpu)
    if not on_cpu:
        return None
    return max(1, limits.ram_bytes - PROGRAM_BYTES - 2 * limits.network_memory_bytes) if limits.ram_gb else None


def enforce_memory(limits: MachineLimits, *, on_cpu: bool) -> None:
    """Hold this process to the owner's `--ram-gb`, less the network's share. No-op without a figure.

    Only for a process that computes on the CPU (`on_cpu`): drivers of GPUs map memory that is not used. `ConfigError`
    for a figure below what the program takes with any run: held to it, it could not even start a thread.
    """
    least = PROGRAM_BYTES + 2 * limits.network_memory_bytes
    if limits.ram_gb and limits.ram_bytes < least:
        raise _too_little_memory("any run", PROGRAM_BYTES, limits)
    if limits.ram_gb and on_cpu:
        allowed = limits.ram_bytes - 2 * limits.network_memory_bytes
        limit_memory_growth(allowed - psutil.Process().memory_info().rss + _SLACK_BYTES)


def _room(directory: Path) -> int:
    """Free bytes on the disk of a folder that may not exist yet, with those that the folder holds already."""
    return free_disk(directory) + held_bytes(directory)


def free_disk(directory: Path) -> int:
    """Free bytes on the disk of a folder that may not exist yet."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def held_bytes(directory: Path) -> int:
    """Bytes of the files under a folder, whatever of it is deleted meanwhile; 0 when it does not exist."""
    held = 0
    for folder, _, names in os.walk(directory):  # skips folders that are gone
        for name in names:
            with suppress(OSError):
                found = os.lstat(os.path.join(folder, name))
                held += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return held


def _gb_above(size_bytes: int) -> str:
    """A size in GB with two digits after the point, rounded up: taken as the option's value it is enough."""
    return f"{math.ceil(size_bytes / 1e7) / 100:.2f}"
