"""Confinement of a role's process and of its network process, in steps, and one line that says what confines it.

Files first, as early as possible: Landlock binds the thread that asks and those it starts later. System calls when the
role has started and before it reads a stranger's bytes: libraries call more while they are imported.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from p2prl.confinement import linux, macos
from p2prl.confinement.call_guard import Guard, start_guard
from p2prl.confinement.call_guard import is_possible as guard_is_possible
from p2prl.confinement.layers import limit, readable_paths, succeeds
from p2prl.confinement.package_folders import check_packages
from p2prl.confinement.role_files import compile_caches, network_access, open_access, role_access
from p2prl.confinement.role_filter import OUTSIDE_CALLS, network_filter, open_filter, role_filter
from p2prl.confinement.scorer_filter import ARCHITECTURES
from p2prl.user_home import user_home

OPEN_FILES = 4_096
"""Open files of a role: weights, spool, pipes; sockets are the network process's."""

MEMORY_FACTOR = 4
"""Memory that a role may reserve, as a multiple of the machine's: it reserves models that it never fills."""


_CACHES = {
    "CUDA_CACHE_PATH": "cuda",
    "NUMBA_CACHE_DIR": "numba",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
}
"""Variables that name folders of compiled code, and the folders in a role's own."""


@dataclass(frozen=True)
class Protection:
    """What confines a role's process."""

    files: str = ""
    """Layer that denies files: `Landlock 7`, `sandbox profile`; empty if none."""
    calls: str = ""
    """Layer that denies system calls; empty if none."""
    is_open: bool = False
    """Whether programs and sockets stay allowed, for an engine that needs them."""
    asked: bool = True
    """False where the owner asked for no confinement."""

    @property
    def is_whole(self) -> bool:
        """Whether no layer is missing."""
        return bool(self.files and self.calls)

    def __str__(self) -> str:
        """One line for the owner."""
        if not self.asked:
            return "NOT confined, as --no-confinement says: a hostile run could read and change your files."
        if not self.files and not self.calls:
            return (
                f"Not confined: this system ({platform.system()} {platform.release()}) offers neither Landlock nor "
                "seccomp. A fault in a library could give a hostile run your rights."
            )
        held = []
        if self.files:
            held.append("own folder and caches only" if self.is_open else "own folder only")
        if not self.is_open:
            held += ["no new programs", "no sockets"] if self.calls else ["no new programs", "no TCP"]
        layers = ", ".join(layer for layer in (self.files, self.calls) if layer)
        text = f"{'Confined' if self.is_whole else 'Confined in part'}: {', '.join(held) or 'no calls to the host'}"
        text = f"{text} ({layers})."
        if self.is_open:
            text += " The engine may start programs and open sockets."
        if not self.files:
            text += " No Landlock on this system: your files stay open to the process."
        if not self.calls:
            text += " No seccomp on this system: other system calls stay open to the process."
        return text


def confine_files(own: Path, readable: tuple[Path, ...] = (), *, is_open: bool = False) -> Protection:
    """First step of a role, in its only thread: its own folder, Python's packages and devices; limits.

    `own` exists. `readable` is what its owner named besides; `is_open` keeps programs, TCP and caches for its engine.
    `ConfigError` when a package that a role needs lies where it may not read.
    """
    limit(resource.RLIMIT_CORE, 0)
    _lower_soft(resource.RLIMIT_NOFILE, OPEN_FILES)
    _keep_caches_in(own)
    if sys.platform == "darwin":
        profile = macos.role_profile(own.resolve(), (*readable_paths(), *readable), user_home() or own.parent)
        applied = not is_open and macos.apply_profile(profile)
        return Protection("sandbox profile" if applied else "", "sandbox profile" if applied else "", is_open)
    if sys.platform != "linux":
        return Protection(is_open=is_open)
    limit(resource.RLIMIT_DATA, MEMORY_FACTOR * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    linux.forbid_new_privileges()
    succeeds(linux.hide_host_name)
    succeeds(linux.drop_capabilities)
    if is_open:  # Landlock's rules are for folders that exist, and a new user has none of these
        for cache in compile_caches():
            succeeds(partial(cache.mkdir, mode=0o700, parents=True, exist_ok=True))
    access = (open_access if is_open else role_access)(own, readable)
    if linux.landlock_version():
        check_packages(access.readable)
    return Protection(files=_landlock(access), is_open=is_open)


def confine_calls(protection: Protection, accepts: int | None = None) -> Protection:
    """Second step: no programs, sockets, tracing or changes to the host from now on, in every thread.

    `accepts` as in `role_filter`.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ARCHITECTURES:
        return protection
    program = open_filter(machine) if protection.is_open else role_filter(machine, accepts)
    if not succeeds(lambda: linux.seccomp_install(program, every_thread=True)):
        return protection
    return Protection(protection.files, "seccomp", protection.is_open)


def confine_network(own: Path, sockets: Path, programs: tuple[Path, ...]) -> Guard | None:
    """Confine a network process, in its only thread, before it imports a transport. Returns in a child of the caller.

    It may use `own`, the folder of its worker; `sockets`, a folder for its daemon, and connect Unix sockets there
    alone; and execute `programs`. None where the system lets nobody guard it: then it may connect those of any program.
    """
    limit(resource.RLIMIT_CORE, 0)
    os.environ["TMPDIR"] = str(own)  # libraries look for a folder that they can write to
    machine = platform.machine()
    if sys.platform != "linux":
        return None
    numbers = OUTSIDE_CALLS.get(machine, {})
    guard = start_guard(sockets, numbers["connect"], numbers["kill"]) if numbers and guard_is_possible() else None
    linux.forbid_new_privileges()
    succeeds(linux.hide_host_name)
    succeeds(linux.drop_capabilities)
    _landlock(network_access(own, sockets, programs, guarded=guard is not None))
    if not numbers:
        return None
    if guard is not None:
        try:
            guard.hand_over(linux.seccomp_listen(network_filter(machine, guarded=True)))
        except OSError:
            guard = None
        else:
            return guard
    succeeds(lambda: linux.seccomp_install(network_filter(machine, guarded=False), every_thread=True))
    return None


def _landlock(access: linux.Access) -> str:
    """Apply rules; the layer's name, empty without Landlock or with threads that it would miss."""
    version = linux.landlock_version()
    if not version or len(os.listdir("/proc/self/task")) > 1:
        return ""
    linux.landlock_restrict(linux.landlock_ruleset(access))
    return f"Landlock {version}"


def _lower_soft(kind: int, value: int) -> None:
    """Lower the soft limit, which the process could raise again by accident only."""
    soft, hard = resource.getrlimit(kind)
    if soft == resource.RLIM_INFINITY or soft > value:
        resource.setrlimit(kind, (value, hard))


def _keep_caches_in(own: Path) -> None:
    """Have libraries keep temporary files and caches in the process's own folder, and leave the hub alone."""
    os.environ["TMPDIR"] = str(own)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name, folder in _CACHES.items():
        os.environ.setdefault(name, str(own / "cache" / folder))
