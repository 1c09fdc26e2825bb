"""Confinement of a process that only computes: it keeps its pipe and its packages, and may ask for nothing else."""

from __future__ import annotations

import platform
import resource
import sys

from p2prl.confinement import linux
from p2prl.confinement.layers import (
    ALL_LAYERS,
    CAPABILITIES,
    LANDLOCK,
    LIMITS,
    NAMESPACE,
    SECCOMP,
    accepted_by_a_child,
    address_space_meter,
    limit,
    readable_paths,
    succeeds,
)
from p2prl.confinement.scorer_filter import ARCHITECTURES, worker_filter

_OPEN_FILES = 16
"""Open files: the pipe, the standard streams, and a module that is imported late."""


def confine_to_computing(*, memory_bytes: int) -> tuple[str, ...]:
    """Restrict this process, which has one thread, for good. Returns the layers that this system has, strongest first.

    `memory_bytes` is address space beyond what it has now. Call it when everything is imported.
    """
    layers = [LIMITS]
    readable = tuple(readable_paths())  # before the namespace, in which this user has no home any more
    in_use = address_space_meter()()
    if in_use:
        limit(resource.RLIMIT_AS, in_use + memory_bytes)
    for kind, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, _OPEN_FILES)):
        limit(kind, value)
    if sys.platform == "linux":
        linux.forbid_new_privileges()
        if succeeds(linux.leave_network):
            layers.append(NAMESPACE)
        if succeeds(linux.drop_capabilities):
            layers.append(CAPABILITIES)
        linux.forbid_tracing()
        if linux.landlock_version():
            linux.landlock_restrict(linux.landlock_ruleset(linux.Access(readable=readable)))
            layers.append(LANDLOCK)
        architecture = ARCHITECTURES.get(platform.machine())
        if architecture is not None:
            program = worker_filter(architecture, may_open=LANDLOCK in layers)
            if accepted_by_a_child(program):
                linux.seccomp_install(program)
                layers.append(SECCOMP)
    if SECCOMP not in layers:
        limit(resource.RLIMIT_NPROC, 1)  # seccomp forbids processes; the limit would forbid threads as well
    return tuple(layer for layer in ALL_LAYERS if layer in layers)
