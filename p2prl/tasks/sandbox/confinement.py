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
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from p2prl.tasks.sandbox import linux
from p2prl.tasks.sandbox.seccomp_filter import ARCHITECTURES, fork_server_filter, worker_filter

MAX_OPEN_FILES = 64
"""Open files of a worker: some libraries read tables of theirs while they score."""

_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_LIBRARY_FOLDERS = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo"),
    *(os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix)),
)

LANDLOCK, SECCOMP, NAMESPACE, CAPABILITIES = "landlock", "seccomp", "network namespace", "no capabilities"
LIMITS = "limits"

NEEDED_LAYERS = (LANDLOCK, SECCOMP)
"""Layers without which third-party code, once imported, reads keys or reaches other programs."""

ALL_LAYERS = (LANDLOCK, SECCOMP, NAMESPACE, CAPABILITIES, LIMITS)
"""Every layer, strongest first."""


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
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    program, ruleset = b"", -1
    if sys.platform == "linux":
        linux.adopt_orphans()
        linux.forbid_new_privileges()
        if _succeeds(linux.leave_network):
            layers.append(NAMESPACE)
        if _succeeds(linux.drop_capabilities):
            layers.append(CAPABILITIES)
        linux.forbid_tracing()
        if linux.landlock_version():
            readable = (*readable_paths(), *codes)
            linux.landlock_restrict(linux.landlock_ruleset(readable))
            ruleset = linux.landlock_ruleset(readable)
            layers.append(LANDLOCK)
        architecture = ARCHITECTURES.get(platform.machine())
        if architecture is not None:
            program = worker_filter(architecture, may_open=LANDLOCK in layers)
            if _accepted_by_a_child(program):
                layers.append(SECCOMP)
                linux.seccomp_install(fork_server_filter(architecture))
            else:
                program = b""
    return Confinement(tuple(layer for layer in ALL_LAYERS if layer in layers), program, ruleset)


def confine_worker(confinement: Confinement, *, memory_bytes: int, cpu_s: int) -> None:
    """Restrict this worker for good. `cpu_s` is the CPU time of its whole life, 0 for no limit.

    Raises `OSError` when a layer that the fork server promised fails: such a worker must not score.
    """
    if confinement.address_space_bytes:
        _limit(resource.RLIMIT_AS, confinement.address_space_bytes + memory_bytes)
    if cpu_s:
        _limit(resource.RLIMIT_CPU, cpu_s)
    _limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    if SECCOMP not in confinement.layers:
        _limit(resource.RLIMIT_NPROC, 1)  # seccomp forbids processes; the limit would forbid threads as well
    if confinement.worker_ruleset >= 0:
        linux.landlock_restrict(confinement.worker_ruleset)
        os.close(confinement.worker_ruleset)
    if confinement.worker_filter:
        linux.seccomp_install(confinement.worker_filter)


def readable_paths() -> Iterator[Path]:
    """Files and folders that a scorer may read: the interpreter, its packages and the libraries they load.

    Never a whole entry of `sys.path`: that may be a project's folder, which can hold a run with its keys.
    """
    paths = sysconfig.get_paths()
    yield from (Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    yield from (Path(entry) for entry in sys.path if Path(entry).name in _PACKAGE_FOLDERS)
    package = Path(__file__).resolve().parents[2]
    yield package
    yield from (link.resolve() for link in package.iterdir() if link.is_symlink())
    yield from map(Path, _LIBRARY_FOLDERS)


def _limit(kind: int, value: int) -> None:
    """Set both limits; a hard limit that is already lower stays."""
    hard = resource.getrlimit(kind)[1]
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (lowest, lowest))


def address_space_meter() -> Callable[[], int]:
    """Opens the file that tells the address space of this process, which its confinement hides, and returns a function
    that reads it. It returns 0 where there is no such file.
    """
    try:
        statm = Path("/proc/self/statm").open("rb", buffering=0)  # noqa: SIM115  # open as long as the process
    except OSError:
        return lambda: 0

    def measure() -> int:
        statm.seek(0)
        return int(statm.read(64).split()[0]) * resource.getpagesize()

    return measure


def child_list() -> Callable[[], list[int]]:
    """Opens the file that lists the children of this process's first thread, which its confinement hides, and returns
    a function that reads their ids. It returns none where there is no such file.
    """
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").open("rb", buffering=0)  # noqa: SIM115  # as above
    except OSError:
        return list

    def read() -> list[int]:
        children.seek(0)
        return [int(pid) for pid in (children.read(1 << 16) or b"").split()]

    return read


def _succeeds(step: Callable[[], None]) -> bool:
    try:
        step()
    except OSError:
        return False
    return True


def _accepted_by_a_child(program: bytes) -> bool:
    """Whether the kernel takes the filter, tried in a process of its own because it cannot be taken back."""
    child = os.fork()
    if child == 0:
        try:
            linux.seccomp_install(program)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0
