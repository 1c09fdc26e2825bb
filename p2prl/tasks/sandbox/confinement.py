"""Layers of protection around scorers: the fork server's, which its workers inherit, and each worker's own.

The fork server gives up what no scorer needs before it builds the scorers. A worker adds what would keep the fork
server from its own work. On systems without Linux's layers the limits, the separate process and the wall clock remain;
a pool says which layers are missing.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from p2prl.confinement import linux
from p2prl.confinement.layers import (
    ALL_LAYERS,
    CAPABILITIES,
    LANDLOCK,
    LIMITS,
    NAMESPACE,
    SECCOMP,
    accepted_by_a_child,
    limit,
    readable_paths,
    succeeds,
)
from p2prl.confinement.scorer_filter import ARCHITECTURES, fork_server_filter, worker_filter

MAX_OPEN_FILES = 64
"""Open files of a worker: some libraries read tables of theirs while they score."""


_RANDOM = Path("/dev/urandom")
"""torch reads it when it is imported, which rewards in TRL's shape may do. `getrandom` gives the same."""

_NOWHERE = Path("/dev/null")
"""dill opens it for writing when it is imported, and torch imports dill where it is installed."""


@dataclass(frozen=True)
class Confinement:
    """The fork server's layers, ready for its workers."""

    layers: tuple[str, ...]
    worker_filter: bytes
    """seccomp instructions; empty where seccomp is missing."""
    worker_ruleset: int
    """File descriptor of Landlock rules for each worker, which keep workers from signaling each other; -1 if none."""
    address_space_bytes: int = 0
    """Address space that the fork server uses itself, once its scorers are built; 0 if unknown."""


def confine_fork_server(codes: Iterable[Path] = ()) -> Confinement:
    """Restrict this process, which has one thread, as far as the system can: before it imports a stranger's code.

    `codes` are further files that may be read: the researchers' own scorers.
    """
    layers = [LIMITS]
    readable = (*readable_paths(), _RANDOM, *codes)  # before the namespace, in which this user has no home any more
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    program, ruleset = b"", -1
    if sys.platform == "linux":
        linux.adopt_orphans()
        linux.forbid_new_privileges()
        if succeeds(linux.leave_network):
            layers.append(NAMESPACE)
        if succeeds(linux.drop_capabilities):
            layers.append(CAPABILITIES)
        linux.forbid_tracing()
        if linux.landlock_version():
            access = linux.Access(readable=readable, rewritable=(_NOWHERE,))
            linux.landlock_restrict(linux.landlock_ruleset(access))
            ruleset = linux.landlock_ruleset(access)
            layers.append(LANDLOCK)
        architecture = ARCHITECTURES.get(platform.machine())
        if architecture is not None:
            program = worker_filter(architecture, may_open=LANDLOCK in layers)
            if accepted_by_a_child(program):
                layers.append(SECCOMP)
                linux.seccomp_install(fork_server_filter(architecture, may_write=LANDLOCK in layers))
            else:
                program = b""
    return Confinement(tuple(layer for layer in ALL_LAYERS if layer in layers), program, ruleset)


def confine_worker(confinement: Confinement, *, memory_bytes: int, cpu_s: int) -> None:
    """Restrict this worker for good. `cpu_s` is the CPU time of its whole life, 0 for no limit.

    Raises `OSError` when a layer that the fork server promised fails: such a worker must not score.
    """
    if confinement.address_space_bytes:
        limit(resource.RLIMIT_AS, confinement.address_space_bytes + memory_bytes)
    if cpu_s:
        limit(resource.RLIMIT_CPU, cpu_s)
    limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    if SECCOMP not in confinement.layers:
        limit(resource.RLIMIT_NPROC, 1)  # seccomp forbids processes; the limit would forbid threads as well
    if confinement.worker_ruleset >= 0:
        linux.landlock_restrict(confinement.worker_ruleset)
        os.close(confinement.worker_ruleset)
    if confinement.worker_filter:
        linux.seccomp_install(confinement.worker_filter)
