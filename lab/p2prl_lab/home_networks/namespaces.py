"""Network namespaces of the lab: one for each machine, with one TUN device, held open by file descriptors alone.

Nothing has a name in the system, so nothing is left when the lab's processes are gone, even after SIGKILL: the lab
runs in a process namespace of its own, whose end ends everything in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from p2prl_lab.home_networks.sites import Site

DEVICE = "wan0"
MTU = 1_500

_TUN = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_OWN = "/proc/self/ns/net"
_TOOLS = ("ip", "unshare", "nsenter")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's namespace and its device."""

    name: str
    namespace: int
    """File descriptor of the namespace."""
    tun: int
    """File descriptor of the device: packets that the machine sends are read here."""

    def inside(self, *command: str) -> list[str]:
        """The command line that runs `command` on this machine. Works while this process lives."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.namespace}", "--", *command]

    def run(self, *command: str) -> None:
        """Run a command on this machine to its end."""
        subprocess.run(self.inside(*command), check=True, capture_output=True)

    def socket(self, kind: int) -> socket.socket:
        """An IPv4 socket of this machine for this process, which must have one thread; it does not block."""
        with _entered(self.namespace):
            made = socket.socket(socket.AF_INET, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.setblocking(False)
        return made

    def set_addresses(self, addresses: tuple[str, ...], router: str | None) -> None:
        """Give the device these addresses and a default route, in place of what it had."""
        self.run("ip", "address", "flush", "dev", DEVICE, "scope", "global")
        for address in addresses:
            self.run("ip", "address", "add", address, "dev", DEVICE, *(("nodad",) if ":" in address else ()))
        if any("." in address for address in addresses):
            hop = () if router is None else ("via", router)
            self.run("ip", "route", "replace", "default", *hop, "dev", DEVICE, *(("onlink",) if hop else ()))
        if any(":" in address for address in addresses):
            self.run("ip", "-6", "route", "replace", "default", "dev", DEVICE)


def refusal() -> str:
    """Why this system permits no lab; empty when it does."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"missing programs: {', '.join(missing)} (packages iproute2 and util-linux)"
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return f"{_TUN} cannot be opened"
    probe = f"ip tuntap add dev {DEVICE} mode tun && ip link set {DEVICE} up && test -r /proc/self/ns/net"
    tried = subprocess.run(own_space("sh", "-c", probe), capture_output=True, text=True, check=False)
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"this system permits no network namespaces: {last}"
    return ""


def own_space(*command: str) -> list[str]:
    """The command line that runs `command` in namespaces of its own (network, processes, mounts); when it ends,
    everything in them ends. Users other than root get a user namespace too."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *command]


@contextlib.contextmanager
def machines_of(sites: list[Site]) -> Iterator[dict[str, Machine]]:
    """A machine for each site, until the end of the block. The calling process must have one thread."""
    made: dict[str, Machine] = {}
    try:
        for site in sites:
            machine = made[site.name] = _make_machine(site.name)
            machine.run("ip", "link", "set", "lo", "up")
            machine.run("ip", "link", "set", DEVICE, "mtu", str(MTU), "up")
            machine.set_addresses(site.addresses, site.router)
        yield made
    finally:
        for machine in made.values():
            os.close(machine.tun)
            os.close(machine.namespace)


def _make_machine(name: str) -> Machine:
    with _entered(None):
        tun = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        return Machine(name, os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC), tun)


@contextlib.contextmanager
def _entered(namespace: int | None) -> Iterator[None]:
    """Be in a network namespace, in a new one for None, while this block runs."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if namespace is None:
            _call(_libc.unshare(_CLONE_NEWNET), "unshare")
        else:
            _call(_libc.setns(namespace, _CLONE_NEWNET), "setns")
        try:
            yield
        finally:
            _call(_libc.setns(home, _CLONE_NEWNET), "setns")
    finally:
        os.close(home)


def _call(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
