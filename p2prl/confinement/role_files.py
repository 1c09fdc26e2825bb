"""Files, devices and programs that a role's process may use: the lists of `docs/confinement.md`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

from p2prl.confinement.layers import readable_paths
from p2prl.confinement.linux import Access
from p2prl.confinement.package_folders import holds_home, module_paths, package_folders
from p2prl.user_home import user_home

PLUGIN_GROUPS = ("p2prl.engines", "p2prl.losses", "p2prl.tasks", "p2prl.transports")
"""Entry points whose packages a role imports later, wherever they are installed."""

DEVICES = (
    *("null", "zero", "full", "random", "urandom", "tty"),
    *("nvidia*", "dri", "kfd", "dxg", "accel", "nvhost*", "nvmap"),
)
"""Below /dev: what every program uses, then accelerators. Patterns, as drivers number their devices."""

_PROC = (
    *("self", "cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "devices", "modules", "filesystems"),
    *("driver", "sys/vm"),
)
"""Below /proc: this process, the machine's size, drivers. Not other processes."""

_THREADS = Path("/proc/self/task")
"""This process's threads. CUDA's driver writes their names there, and does not start where it cannot. Files of
later threads cannot be named one by one, so the folder is: it reaches this process alone (`docs/confinement.md`)."""

_SYS = ("bus", "class", "module", "fs/cgroup", "kernel/mm", "dev")
"""Below /sys, besides `devices`: buses and accelerators."""

_NETWORK_PROC = ("self", "cpuinfo", "meminfo", "stat", "loadavg", "uptime", "sys/net", "sys/vm")
_NETWORK_SYS = ("devices/system/cpu", "fs/cgroup", "kernel/mm")

_NAMES_OF_MACHINE = (
    *(f"/proc/sys/kernel/{name}" for name in ("hostname", "domainname", "random")),
    *(f"/sys/class/{kind}/*" for kind in ("net", "block", "nvme", "dmi", "ieee80211", "bluetooth")),
    "/sys/bus/usb/devices/*",
)
"""The host name, the boot id, addresses of network cards, serial numbers of disks, boards and USB devices: they stay
closed. Patterns; /sys has links there. A battery's stays open: a worker reads beside it how full the battery is."""

_ETC = ("localtime", "passwd", "group", "nsswitch.conf", "nvidia", "OpenCL", "vulkan", "ld.so.conf", "ld.so.conf.d")

_NETWORK_ETC = (
    "hosts",
    "resolv.conf",
    "host.conf",
    "gai.conf",
    "protocols",
    "services",
    "ssl",
    "pki",
    "ca-certificates",
)

_DRIVERS = (
    *("/usr/local/cuda*", "/usr/local/nvidia", "/opt/cuda*", "/opt/rocm*", "/usr/lib/wsl", "/run/opengl-driver"),
    *("/nix/store", "/usr/share/nvidia", "/usr/share/terminfo", "/usr/share/libdrm", "/usr/share/ca-certificates"),
)

_PROGRAMS = ("/bin", "/sbin", "/usr", "/lib", "/lib64", "/opt", "/nix/store", "/usr/local")
"""Programs of the system, for an engine that compiles."""

_CACHES = (".cache/vllm", ".cache/flashinfer", ".cache/torch", ".triton", ".nv", ".config/vllm")
"""Below the home folder: what vLLM compiled before."""

_MOVED = {".cache": "XDG_CACHE_HOME", ".config": "XDG_CONFIG_HOME"}
"""Variables that name another place for a folder of the home folder."""


def role_access(own: Path, readable: tuple[Path, ...] = ()) -> Access:
    """What a role that computes may use: its own folder, Python's packages, devices, and the names of its threads."""
    system = (*_below("/proc", _PROC), *_system(), *_below("/sys", _SYS), *_below("/etc", _ETC))
    return Access(
        readable=(*readable_paths(), *plugin_packages(), *_found(_DRIVERS), *_library_path(), *system, *readable),
        writable=(own,),
        rewritable=(_THREADS,),
        devices=_below("/dev", DEVICES),
    )


def open_access(own: Path, readable: tuple[Path, ...] = ()) -> Access:
    """What a role may use whose engine compiles and talks to itself: programs, TCP and its caches besides."""
    access = role_access(own, readable)
    prefixes = tuple(Path(prefix) / "bin" for prefix in (sys.prefix, sys.base_prefix))
    return replace(
        access,
        writable=(own, *compile_caches(), Path("/dev/shm")),  # noqa: S108  # where torch shares tensors
        sockets=(own,),
        readable=(*access.readable, *_below("/etc", _NETWORK_ETC), Path("/proc")),
        programs=(*map(Path, _PROGRAMS), *prefixes, *package_folders()),
        tcp=True,
    )


def compile_caches() -> tuple[Path, ...]:
    """Folders that keep what vLLM compiled, in the home folder or where the owner moved them; none without a home."""
    home = user_home()
    if home is None:
        return ()
    found = []
    for name in map(Path, _CACHES):
        moved = Path(os.environ.get(_MOVED.get(name.parts[0], ""), ""))
        found.append(moved.joinpath(*name.parts[1:]) if moved.is_absolute() else home / name)
    return tuple(found)


def network_access(own: Path, sockets: Path, programs: tuple[Path, ...], *, guarded: bool) -> Access:
    """What a network process may use: its worker's folder, its daemon, sockets in a folder of their own, and TCP.

    Only without a guard, which measures the daemon, it needs all of /proc.
    """
    processes = (*_below("/proc", _NETWORK_PROC), *_system("/proc/sys/kernel")) if guarded else (Path("/proc"),)
    system = (*processes, *_below("/sys", _NETWORK_SYS), *_below("/etc", (*_ETC, *_NETWORK_ETC)))
    resolver = ("/run/systemd/resolve", "/run/resolvconf", "/usr/share/ca-certificates", "/etc/ca-certificates")
    return Access(
        readable=(*readable_paths(), *plugin_packages(), *_library_path(), *system, *map(Path, resolver)),
        writable=(own,),
        sockets=(sockets,),
        devices=_below("/dev", DEVICES[:6]),
        programs=programs,
        tcp=True,
    )


def _system(*roots: str) -> Iterator[Path]:
    """Settings of the kernel and devices without what names the machine; whole folders where nothing in them does.

    Landlock allows and never forbids, so a folder that holds something closed is allowed by its other entries; it
    cannot be listed then.
    """
    closed = {path.resolve() for pattern in _NAMES_OF_MACHINE for path in Path("/").glob(pattern.lstrip("/"))}
    for root in roots or ("/proc/sys/kernel", "/sys/devices"):
        yield from _without(Path(root), closed)


def _without(folder: Path, closed: set[Path]) -> Iterator[Path]:
    if folder in closed:
        return
    if not any(folder in path.parents for path in closed):
        yield folder
        return
    for entry in sorted(folder.iterdir()):
        if not entry.is_symlink():  # what it leads to is allowed where it lies, or nowhere
            yield from _without(entry, closed)


def plugin_packages() -> Iterator[Path]:
    """Packages of entry points, also those in a folder that holds other files."""
    names = {plugin.module.partition(".")[0] for group in PLUGIN_GROUPS for plugin in entry_points(group=group)}
    yield from module_paths(sorted(names))


def _library_path() -> Iterator[Path]:
    """Folders of libraries that the owner named, but for a home folder as a whole."""
    for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        path = Path(entry)
        if path.is_absolute() and path.is_dir() and not holds_home(path):
            yield path


def _below(root: str, patterns: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(path for pattern in patterns for path in sorted(Path(root).glob(pattern)))


def _found(patterns: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(path for pattern in patterns for path in sorted(Path("/").glob(pattern.lstrip("/"))))
