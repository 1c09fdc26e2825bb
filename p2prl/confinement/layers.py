"""Layers that confine a process: their names, the files that Python itself needs, and meters that outlive them."""

from __future__ import annotations

import mimetypes
import os
import resource
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from p2prl.confinement import linux
from p2prl.confinement.package_folders import package_paths

_LIBRARY_FOLDERS = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo"),
    *(os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix)),
    *mimetypes.knownfiles,  # Python opens those that exist when a library asks for the type of a file
)

LANDLOCK, SECCOMP, NAMESPACE, CAPABILITIES = "landlock", "seccomp", "network namespace", "no capabilities"
LIMITS = "limits"

NEEDED_LAYERS = (LANDLOCK, SECCOMP)
"""Layers without which third-party code, once imported, reads keys or reaches other programs."""

ALL_LAYERS = (LANDLOCK, SECCOMP, NAMESPACE, CAPABILITIES, LIMITS)
"""Every layer, strongest first."""


def readable_paths() -> Iterator[Path]:
    """Files and folders that a confined process may read: the interpreter, its packages and the libraries they load."""
    paths = sysconfig.get_paths()
    yield from (Path(paths[name]) for name in ("stdlib", "platstdlib"))
    yield from package_paths()
    package = Path(__file__).resolve().parents[1]
    yield package
    yield from (link.resolve() for link in package.iterdir() if link.is_symlink())
    yield from map(Path, _LIBRARY_FOLDERS)


def limit(kind: int, value: int) -> None:
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


def succeeds(step: Callable[[], None]) -> bool:
    """Whether the kernel grants a step, which is taken."""
    try:
        step()
    except OSError:
        return False
    return True


def accepted_by_a_child(program: bytes) -> bool:
    """Whether the kernel takes the filter, tried in a process of its own because it cannot be taken back."""
    child = os.fork()
    if child == 0:
        try:
            linux.seccomp_install(program)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0
