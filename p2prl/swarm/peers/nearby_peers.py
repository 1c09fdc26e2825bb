"""Peers of a run that announce themselves on the local network (multicast DNS service discovery, RFC 6763). Pure.

An answer is an address to try: the peer that listens there has to prove its key, and the link's digest says which key
signs the run. Everything on the network may answer, so answers are checked and bounded.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from p2prl.errors import IdentityError
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId, public_key_of
from p2prl.swarm.peers.dial_rules import DialRules

SERVICE = "_p2prl._tcp.local."
"""Type of the announcements."""

MAX_NEARBY = 32
"""Peers remembered, the newest: a room full of machines. Each costs a dial while the learner is missing."""

MAX_HOSTS = 4
"""Addresses taken of one peer: cable and radio, IPv4 and IPv6."""

_RUN, _PEER = b"run", b"peer"
_MOST_BYTES = 128
"""A value longer than that is neither a run nor a peer."""


def announcement(run: Digest, own: PeerId) -> dict[bytes, bytes]:
    """What a node says of itself beside its addresses: its run and its peer id."""
    return {_RUN: run.hex().encode(), _PEER: own.encode()}


def name_of(peer: PeerId) -> str:
    """Name of a peer's announcement: it tells nothing of the machine or its owner."""
    return f"{peer[-16:]}.{SERVICE}"


class NearbyPeers:
    """Peers of one run that were found, and where."""

    def __init__(self, run: Digest, own: PeerId) -> None:
        self._run = run
        self._own = own
        self._found: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()

    def note(self, properties: Mapping[bytes, bytes | None], hosts: Sequence[str], port: int) -> bool:
        """Take an answer: what its sender says of itself, its IP addresses and its TCP port. Returns whether it is of
        another peer of this run."""
        run, name = properties.get(_RUN) or b"", properties.get(_PEER) or b""
        if max(len(run), len(name)) > _MOST_BYTES or run != self._run.hex().encode() or not 0 < port < 1 << 16:
            return False
        peer = PeerId(name.decode("ascii", "replace"))
        try:
            public_key_of(peer)
        except IdentityError:
            return False
        addresses = tuple(f"{place}/tcp/{port}/p2p/{peer}" for place in map(_place, hosts[:MAX_HOSTS]) if place)
        if peer == self._own or not addresses:
            return False
        self._found.pop(peer, None)
        self._found[peer] = addresses
        if len(self._found) > MAX_NEARBY:
            self._found.popitem(last=False)
        return True

    def addresses(self, rules: DialRules) -> list[tuple[PeerId, str]]:
        """Where to dial them, the newest first, as far as a stranger may name these addresses."""
        return [
            (peer, address)
            for peer, addresses in reversed(self._found.items())
            for address in rules.chosen(addresses, peer)
        ]


def hosts_and_port(addresses: Sequence[str]) -> tuple[list[str], int]:
    """What a node announces of its own multiaddrs: the IP addresses of one port, without circuits; port 0 for none."""
    places = [address.split("/") for address in addresses if "p2p-circuit" not in address.split("/")]
    direct = [(parts[2], int(parts[4])) for parts in places if parts[1] in ("ip4", "ip6") and parts[3] == "tcp"]
    port = direct[0][1] if direct else 0
    return [host for host, other in direct if other == port][:MAX_HOSTS], port


def _place(host: str) -> str:
    """The beginning of a multiaddr; empty for what is no IP address."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return ""
    return f"/ip{ip.version}/{ip}"
