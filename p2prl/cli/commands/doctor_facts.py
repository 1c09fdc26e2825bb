"""Facts about this machine for `p2prl doctor`, each read so that its absence is a fact too. Sends nothing by itself."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from p2prl import __version__
from p2prl.cli.commands.doctor_checks import KeyFile, MachineFacts
from p2prl.config.named_link import named_link
from p2prl.config.worker_folder import check_home
from p2prl.confinement import call_guard, linux
from p2prl.errors import P2PRLError
from p2prl.installation import this_installation
from p2prl.net.transports.interface_addresses import has_public_address
from p2prl.net.transports.tcp_trial import Outcome, outcome_of
from p2prl.protocol import wire_version

_DIAL_S = 4.0
"""How long a peer may take to answer the first packet: a round trip around the world takes a third of a second."""

_MOST_DIALED = 8

_DEVICE_S = 300.0
"""How long the checkup of the device may take, torch's import on a slow disk included."""

_UNSYNCHRONIZED = 0x0040
"""STA_UNSYNC of <sys/timex.h>."""

_NOWHERE = (("IPv4", socket.AF_INET, "192.0.2.1"), ("IPv6", socket.AF_INET6, "2001:db8::1"))
"""Addresses of documentation: a datagram socket that is connected to one sends nothing, and needs a route."""


def machine_facts(home: Path, *, link: str, device: str, tests_device: bool, p2pd: Path | None = None) -> MachineFacts:
    """Read everything; peers of `link` are dialed if there is one, and the daemon `p2pd` is tested. `ConfigError` for
    a link that is none."""
    synchronized, error_s = clock()
    driver, cards = nvidia()
    return MachineFacts(
        python=sys.version_info[:3],
        version=__version__,
        wire=wire_version.WIRE_VERSION,
        install_again=this_installation().again_command,
        clock_synchronized=synchronized,
        clock_error_s=error_s,
        ahead_s=ahead(home, time.time()),
        home_error=_home_error(home),
        home_mode=stat.S_IMODE(home.stat().st_mode) if home.is_dir() else 0o700,
        disk_free=_disk_free(home),
        memory_available=psutil.virtual_memory().available,
        keys=key_files(home),
        confinement=_confinement(),
        driver=driver,
        cards=cards,
        device=device_facts(device) if tests_device else {},
        routes=tuple(name for name, family, address in _NOWHERE if _has_route(family, address)),
        has_public_address=has_public_address(),
        dialed=dial(link) if link else {},
        daemon=daemon_steps(p2pd) if p2pd is not None else (),
        spool_bytes=sum(path.stat().st_size for path in home.glob("seat-*/*/spool.db")),
    )


def clock() -> tuple[bool | None, float | None]:
    """Whether a time service sets the clock, and its largest error in seconds; None where the kernel does not tell."""
    if sys.platform != "linux":
        return None, None
    buffer = (ctypes.c_long * 64)()  # struct timex: modes, offset, freq, maxerror, esterror, status, …
    try:
        code = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(buffer))
    except (OSError, AttributeError):
        return None, None
    if code < 0:
        return None, None
    synchronized = not buffer[5] & _UNSYNCHRONIZED
    return synchronized, buffer[3] / 1e6 if synchronized else None


def ahead(home: Path, now: float) -> float:
    """Seconds by which the newest status file of this home lies in the future."""
    newest = max((path.stat().st_mtime for path in home.glob("*/*/status.json")), default=now)
    return max(0.0, newest - now)


def key_files(home: Path) -> tuple[KeyFile, ...]:
    """The keys under a home and who may read them."""
    found = []
    for path in sorted(home.glob("*/key.json")):
        info = path.stat()
        name = f"{path.parent.name}/{path.name}"
        found.append(KeyFile(name=name, mode=stat.S_IMODE(info.st_mode), is_ours=info.st_uid == os.geteuid()))
    return tuple(found)


def nvidia() -> tuple[str, int]:
    """Version of the driver and the number of cards, from the kernel's files; empty and 0 without one."""
    driver = ""
    with suppress(OSError):
        parts = Path("/proc/driver/nvidia/version").read_text().split()
        driver = next((part for part in parts if part[0].isdigit() and "." in part), "")
    cards = len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) if driver else 0
    return driver, cards


def device_facts(device: str) -> dict[str, object]:
    """The object of the device's checkup, in a process confined as a worker; an `error` when that process fails."""
    with TemporaryDirectory(prefix="p2prl-doctor-") as own:
        command = [sys.executable, "-m", "p2prl.config.confined_checkup", own, device]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_DEVICE_S, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"no answer within {_DEVICE_S:.0f} s"}
    with suppress(ValueError, IndexError):
        found = json.loads(done.stdout.splitlines()[-1])
        if isinstance(found, dict):
            return found
    said = done.stderr.strip().splitlines()
    return {"error": f"its process ended with status {done.returncode}: {said[-1][:300] if said else 'no message'}"}


def daemon_steps(p2pd: Path) -> tuple[tuple[str, bool, str], ...]:
    """What a network daemon was asked to do, whether it did, and how; up to the first failure."""
    from p2prl.net.transports.hivemind.daemon_self_test import self_test

    return tuple((step.name, step.passed, step.text) for step in asyncio.run(self_test(p2pd.absolute())))


def dial(link: str) -> dict[str, Outcome]:
    """What a connection to each address of a join link shows; it is closed again."""
    addresses = named_link(link).bootstrap[:_MOST_DIALED]

    async def tried() -> list[Outcome]:
        return await asyncio.gather(*(outcome_of(address, _DIAL_S) for address in addresses))

    return dict(zip(addresses, asyncio.run(tried()), strict=True))


def _has_route(family: int, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
    except OSError:
        return False
    return True


def _home_error(home: Path) -> str:
    try:
        check_home(home)
    except P2PRLError as error:
        return str(error)
    return ""


def _disk_free(home: Path) -> int | None:
    there = next((path for path in (home, *home.absolute().parents) if path.exists()), home)
    try:
        return shutil.disk_usage(there).free
    except OSError:
        return None


def _confinement() -> str:
    """Layers that this system offers, as its kernel says when asked."""
    if sys.platform == "darwin":
        return "sandbox profile"
    has_landlock = sys.platform == "linux" and linux.landlock_version() > 0
    offered = (("Landlock", has_landlock), ("seccomp", _has_seccomp()), ("guarded sockets", call_guard.is_possible()))
    return ", ".join(name for name, there in offered if there)


def _has_seccomp() -> bool:
    with suppress(OSError):
        return "Seccomp:" in Path("/proc/self/status").read_text() and platform.system() == "Linux"
    return False
