"""Network namespaces of the lab: one for each machine and for each router, held open by file descriptors alone.

Nothing has a name in the system, so nothing is left when the lab's processes are gone, even after SIGKILL: the lab
runs in a process namespace of its own, whose end ends everything in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from p2prl_lab.home_networks.kernel_routers import INSIDE_DEVICE, KEEPS_PORTS, OUTSIDE_DEVICE, KernelRouter
from p2prl_lab.home_networks.sites import MTU, Site

_LINK_LOCAL_ROUTER = "fe80::1"

_TUN = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_OWN = "/proc/self/ns/net"
_TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "nft": "nftables", "sysctl": "procps"}
"""Programs and their Debian packages."""

_NETLINK_NETFILTER = 12
_FORGET_CONNECTIONS = struct.pack("=IHHIIBBH", 20, 0x0102, 0x0005, 0, 0, 0, 0, 0)
"""nfnetlink: delete what connection tracking holds (IPCTNL_MSG_CT_DELETE, with no condition), and answer."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's namespace, those of the routers in front of it, and the device of its line."""

    name: str
    namespace: int
    """File descriptor of the namespace."""
    routers: tuple[int, ...]
    """The same of its routers, from the home to the internet."""
    tun: int
    """File descriptor of the line's device: packets that leave the outermost namespace are read here. −1 for a home
    behind another one's carrier."""

    def inside(self, *command: str, router: int | None = None) -> list[str]:
        """The command line that runs `command` on this machine, or on one of its routers. Works while this process
        lives."""
        namespace = self.namespace if router is None else self.routers[router]
        return ["nsenter", f"--net={_path(namespace)}", "--", *command]

    def run(self, *command: str, router: int | None = None) -> None:
        """Run a command there to its end. Raises `OSError` when it fails."""
        done = subprocess.run(self.inside(*command, router=router), check=False, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{self.name}: {' '.join(command)}: {done.stderr.strip()}")

    def script(self, lines: list[str], *, router: int | None = None) -> None:
        """Run the shell's commands there, in one process, up to the first that fails."""
        self.run("sh", "-ec", "\n".join(lines), router=router)

    def socket(self, kind: int) -> socket.socket:
        """An IPv4 socket of this machine for this process, which must have one thread; it does not block."""
        with _entered(self.namespace):
            made = socket.socket(socket.AF_INET, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.setblocking(False)
        return made

    def restart_router(self) -> None:
        """Let the router next to the machine forget its connections and opened ports, as one does that starts again."""
        with _entered(self.routers[0]), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
            kernel.send(_FORGET_CONNECTIONS)
            answer = kernel.recv(1_024)
        number = -struct.unpack_from("=i", answer, 16)[0]
        if number:
            raise OSError(number, f"{self.name}: connections: {os.strerror(number)}")
        self.run("nft", "flush", "map", "inet", "home", "opened", router=0)

    def move(self, addresses: tuple[str, ...]) -> None:
        """Take these public addresses, with prefix lengths, in place of what the machine or its outermost router had.
        Without IPv4 behind a router, the machine itself does."""
        if not self.routers:
            self._set_line(addresses, None)
            return
        self._set_line(addresses, len(self.routers) - 1)
        if ":" in addresses[0]:
            self.set_home(addresses, _LINK_LOCAL_ROUTER)

    def _set_line(self, addresses: tuple[str, ...], router: int | None) -> None:
        """Addresses of the line's device, and its default routes. A router's IPv6 addresses belong to its home."""
        lines = [f"ip address flush dev {OUTSIDE_DEVICE} scope global"]
        for address in addresses:
            if ":" not in address:
                lines.append(f"ip address add {address} dev {OUTSIDE_DEVICE}")
                lines.append(f"ip route replace default dev {OUTSIDE_DEVICE}")
                continue
            if router is None:
                lines.append(f"ip address add {address} dev {OUTSIDE_DEVICE} nodad")
            else:
                lines.append(f"ip -6 route replace {address} dev {INSIDE_DEVICE}")
            lines.append(f"ip -6 route replace default dev {OUTSIDE_DEVICE}")
        self.script(lines, router=router)

    def set_home(self, addresses: tuple[str, ...], next_hop: str) -> None:
        """Addresses of the home's device, and the default route through its router."""
        lines = [f"ip address flush dev {INSIDE_DEVICE} scope global"]
        lines += [
            f"ip address add {address} dev {INSIDE_DEVICE} {'nodad' if ':' in address else ''}" for address in addresses
        ]
        lines.append(f"ip {'-6' if ':' in next_hop else '-4'} route replace default via {next_hop} dev {INSIDE_DEVICE}")
        self.script(lines)


def refusal() -> str:
    """Why this system permits no lab; empty when it does."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        packages = ", ".join(sorted({_TOOLS[tool] for tool in missing}))
        return f"missing programs: {', '.join(missing)} (packages: {packages})"
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return f"{_TUN} cannot be opened"
    devices = f"ip tuntap add dev {OUTSIDE_DEVICE} mode tun && ip link add {INSIDE_DEVICE} type veth peer name lan1"
    probe = f"{devices} && test -r /proc/self/ns/net && nft -f -"
    rules = KernelRouter(inside="192.168.1.1/24", translation=KEEPS_PORTS).rules()
    tried = subprocess.run(own_space("sh", "-c", probe), input=rules, capture_output=True, text=True, check=False)
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or ["no reason given"])[0]
        return f"this system permits no routers in network namespaces: {last}"
    return ""


def own_space(*command: str) -> list[str]:
    """The command line that runs `command` in namespaces of its own (network, processes, mounts); when it ends,
    everything in them ends. Users other than root get a user namespace too."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *command]


@contextlib.contextmanager
def machines_of(sites: list[Site]) -> Iterator[dict[str, Machine]]:
    """A machine for each site, with its routers, until the end of the block. Call it from the only thread."""
    made: dict[str, Machine] = {}
    try:
        for site in sites:
            machine = made[site.name] = _make_machine(site.name, len(site.routers), has_line=not site.behind)
            _set_up(machine, site)
            if site.behind:
                _join_carrier(machine, site, made[site.behind])
        yield made
    finally:
        for machine in made.values():
            for descriptor in (machine.tun, machine.namespace, *machine.routers):
                if descriptor >= 0:
                    os.close(descriptor)


def _make_machine(name: str, routers: int, *, has_line: bool) -> Machine:
    """Namespaces from the machine to the internet; the last one made has the line's device, if there is one."""
    namespaces, tun = [], -1
    for number in range(routers + 1):
        with _entered(None):
            namespaces.append(os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC))
            if number == routers and has_line:
                tun = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
                fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", OUTSIDE_DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    return Machine(name, namespaces[0], tuple(namespaces[1:]), tun)


def _set_up(machine: Machine, site: Site) -> None:
    """Devices, addresses, routes and rules."""
    line_up = f"ip link set {OUTSIDE_DEVICE} mtu {MTU} up"
    ports = "sysctl -qw net.ipv4.ip_unprivileged_port_start=443"  # a confined process has no rights of root
    machine.script(["ip link set lo up", *(() if site.routers else (line_up, ports))])
    for number, router in enumerate(site.routers):
        inner, before = (INSIDE_DEVICE, None) if number == 0 else (OUTSIDE_DEVICE, number - 1)
        peer = f"peer name {INSIDE_DEVICE} netns {_path(machine.routers[number])}"
        machine.script([f"ip link add {inner} type veth {peer}", f"ip link set {inner} up"], router=before)
        lines = ["ip link set lo up", f"ip link set {INSIDE_DEVICE} up"]
        lines.append(f"ip address add {router.inside} dev {INSIDE_DEVICE} {'nodad' if ':' in router.inside else ''}")
        lines.append("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
        lines.extend((line_up,) if number == len(site.routers) - 1 and not site.behind else ())
        machine.script([*lines, "nft -f - <<'END'", router.rules(), "END"], router=number)
        if number:  # the router before this one has its outside address on that link
            hop = router.inside.partition("/")[0]
            joined = [f"ip address add {site.routers[number - 1].outside} dev {OUTSIDE_DEVICE}"]
            machine.script([*joined, f"ip route add default via {hop} dev {OUTSIDE_DEVICE}"], router=number - 1)
    if site.router is not None and "." in site.addresses[0]:
        machine.set_home(site.addresses, site.router)
    if site.behind:
        return
    machine.move(tuple(f"{ipaddress.ip_address(raw)}/{8 * len(raw)}" for raw in sorted(site.outside, key=len)))


def _join_carrier(machine: Machine, site: Site, host: Machine) -> None:
    """A link from the home's router to the outermost router of `host`."""
    outside = site.routers[0].outside
    hop, device, carrier = outside.replace(".2/", ".1/"), f"lan{site.number}", len(host.routers) - 1
    peer = f"peer name {device} netns {_path(host.routers[carrier])}"
    lines = [f"ip link add {OUTSIDE_DEVICE} type veth {peer}", f"ip link set {OUTSIDE_DEVICE} up"]
    host_lines = [f"ip address add {hop} dev {device}", f"ip link set {device} up"]
    lines.append(f"ip address add {outside} dev {OUTSIDE_DEVICE}")
    machine.script(lines, router=0)
    host.script(host_lines, router=carrier)
    machine.script([f"ip route add default via {hop.partition('/')[0]} dev {OUTSIDE_DEVICE}"], router=0)


def _path(namespace: int) -> str:
    return f"/proc/{os.getpid()}/fd/{namespace}"


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
