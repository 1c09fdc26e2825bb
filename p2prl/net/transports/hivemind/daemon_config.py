"""Settings of the go-libp2p daemon, its command line, and its start-up errors with remedies."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from p2prl.errors import ConfigError, MachineError
from p2prl.net.listen_addresses import ANY_IPV4
from p2prl.net.transports import multiaddrs
from p2prl.net.transports.hivemind import light_import

DAEMON_VARIABLE = "P2PRL_P2PD"
"""Environment variable with the path of another p2pd, for instance a newer build of hivemind's fork."""

_CIRCUIT_BUFFER_BYTES = 32 * 1024
"""Buffer for each direction of a relayed connection, held while it is open; Go copies streams in parts of this size.
The daemon's own choice is 16 MiB: three circuits took a public peer from 70 to 160 MB, and strangers may open 16 for
each of 128 reservations."""

_UNCLAIMED_S = 5
"""A daemon that no client connects to ends after this long."""


@dataclass(frozen=True, kw_only=True)
class DaemonConfig:
    """Settings of this peer's libp2p node."""

    listen: tuple[str, ...] = (ANY_IPV4,)
    """Multiaddrs to listen on; none to only dial."""
    relays: tuple[str, ...] = ()
    """Relay candidates, multiaddrs ending in /p2p/<id>. When this peer cannot be dialed, it reserves a slot at relays
    and is dialed through them."""
    is_public: bool = False
    """Whether others can dial this peer, for certain: its relay then grants circuits of 4 GiB and 30 minutes at once.
    The relay of a peer that has yet to find that out ends a circuit after 128 KiB or two minutes."""
    is_private: bool = False
    """Whether others cannot dial this peer, for certain: it reserves a circuit without asking AutoNAT first."""
    binary: Path | None = None
    """The daemon to run; None for `daemon_binary`."""
    families: frozenset[int] = frozenset({4, 6})
    """IP versions of which this machine has an address that leads out of it: relays are dialed over these."""
    nat_port_map: bool = True
    """Ask the home router for a port (UPnP, NAT-PMP)."""
    auto_nat: bool = True
    """Help others find out whether they can be dialed."""
    max_links: int = 1_024
    """Peers this node may be linked with. The daemon closes connections above its own limit, needed or not."""


_SPARE_CONNECTIONS = 256
"""Connections beyond the links: peers of the directory, relayed ones, and newcomers."""


_PRIVILEGED = (
    "Choose a port above 1023. For 443, on Linux: sudo sysctl net.ipv4.ip_unprivileged_port_start=443, since a confined"
    " process has no rights of root either."
)


class PortTakenError(MachineError):
    """The port to listen on is in use, perhaps only for seconds."""

    def as_machine_error(self) -> MachineError:
        """This error as a class that callers in other processes know."""
        return MachineError(str(self), remedy=self.remedy)


def daemon_binary() -> Path:
    """Path of the p2pd to run: from the environment, or the one in hivemind's wheel."""
    return Path(os.environ.get(DAEMON_VARIABLE) or light_import.load().daemon_path)


def installed_daemon() -> Path:
    """As `daemon_binary`, without an import of the library."""
    spec = importlib.util.find_spec("hivemind")
    folders = (spec.submodule_search_locations if spec is not None else None) or [""]
    return Path(os.environ.get(DAEMON_VARIABLE) or Path(folders[0]) / "hivemind_cli" / "p2pd")


def daemon_arguments(config: DaemonConfig, *, control_path: Path, key_file: Path) -> list[str]:
    """The daemon's command line. Raises `ConfigError` for a malformed address."""
    arguments = [
        f"-listen=/unix{control_path}",
        f"-id={key_file}",
        f"-idleTimeout={_UNCLAIMED_S}s",
        "-dhtServer=1",  # libp2p's own routing: finds the addresses of peers that the directory knows by id alone
        "-tls=1",
        "-noise=1",
        "-connManager=1",
        f"-connLo={config.max_links + _SPARE_CONNECTIONS}",
        f"-connHi={config.max_links + 2 * _SPARE_CONNECTIONS}",
        "-relay=1",
        "-relayService=1",  # carry others' traffic when publicly reachable, within the daemon's own limits
        f"-relayBufferSize={_CIRCUIT_BUFFER_BYTES}",
        f"-autoRelay={int(bool(config.relays) and not config.is_public)}",
        # With discovery the daemon reserves no slot before it has four candidates, or three minutes have passed; with
        # the given candidates alone it needs as many as there are, and has its first circuit within seconds.
        "-relayDiscovery=0",
        f"-forceReachabilityPublic={int(config.is_public)}",
        f"-forceReachabilityPrivate={int(config.is_private)}",
        f"-autonat={int(config.auto_nat)}",
        f"-natPortMap={int(config.nat_port_map)}",
    ]
    relays = () if config.is_public else one_address_each(config.relays, config.families)
    for flag, values in (("hostAddrs", config.listen), ("trustedRelays", relays)):
        for value in values:
            multiaddrs.to_bytes(value)
        if values:
            arguments.append(f"-{flag}={','.join(values)}")
    if not config.listen:
        arguments.append("-noListenAddrs=1")
    return arguments


def one_address_each(relays: tuple[str, ...], families: frozenset[int] = frozenset({4, 6})) -> tuple[str, ...]:
    """One address of each relay, the first that this machine can dial: the daemon waits for as many relays as it was
    given addresses. `families` are the IP versions that lead out of this machine."""
    first: dict[str, str] = {}
    for address in sorted(relays, key=lambda address: not _is_of(address, families)):
        first.setdefault(address.rpartition("/p2p/")[2], address)
    return tuple(sorted(first.values(), key=relays.index))


def _is_of(address: str, families: frozenset[int]) -> bool:
    """Whether an address may be dialed over one of these IP versions; a name may lead to any."""
    version = {"ip4": 4, "dns4": 4, "ip6": 6, "dns6": 6}.get(address.split("/")[1])
    return version is None or version in families


def binary_error(binary: Path, why: str) -> MachineError:
    """The error for a daemon that the operating system cannot run."""
    if os.environ.get(DAEMON_VARIABLE) == str(binary):
        remedy = f"{DAEMON_VARIABLE} names it: point it at a p2pd for this machine, or unset it."
    else:
        remedy = f"Install it again: pip install --force-reinstall --no-deps hivemind=={light_import.VERSION}"
    return MachineError(f"the network daemon {binary} cannot run: {why}", remedy=remedy)


def startup_error(last_line: str, config: DaemonConfig) -> MachineError | ConfigError:
    """The error for a daemon that ended before it listened, from the last line it printed."""
    reason = last_line.split(" ", 2)[-1] if last_line[:2] == "20" else last_line  # the line starts with date and time
    listen = ", ".join(config.listen)
    if "address already in use" in reason:
        return PortTakenError(
            f"another program already uses the port of {listen}",
            remedy="Close it, or listen on another port (0 takes any free one).",
        )
    if "cannot assign requested address" in reason or "can't assign requested address" in reason:
        return MachineError(f"{listen} is not an address of this machine", remedy="Listen on 0.0.0.0.")
    if "permission denied" in reason and "listen" in reason:
        return MachineError(f"this user may not listen on {listen}", remedy=_PRIVILEGED)
    return MachineError(
        f"the network daemon did not start: {reason or 'it printed nothing'}",
        remedy="Start again; if it fails again, report this message.",
    )
