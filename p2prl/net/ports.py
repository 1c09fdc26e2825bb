"""The transport port: the interface between p2prl and a network library.

A transport moves opaque frames between authenticated peers and keeps small owner-signed records in a directory. It
does not know what a frame means; `protocol.frames` does. To add a transport, write a class with the methods of
`Transport` and a `TransportFactory` that starts it, and declare the factory as an entry point in the group
`p2prl.transports` (`examples/transport` is a complete one).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from p2prl.clock import Clock
from p2prl.net.pacing import Pacer
from p2prl.protocol.identity import Identity, PeerId

Receiver = Callable[[PeerId, bytes], None]
"""Takes the sender, proven by the connection's handshake, and one complete frame. Runs on the event loop: it must not
block."""


class PeerGuard(Protocol):
    """What a transport asks and tells its owner about peers, so that strangers share its streams and memory."""

    def note_address(self, peer: PeerId, address: str) -> None:
        """A connection of the peer comes from this multiaddr, or was dialed there."""
        ...

    def is_banned(self, peer: PeerId) -> bool:
        """Whether to drop the peer's streams unread."""
        ...

    def importance(self, peer: PeerId) -> int:
        """0 for a peer without a link; above it, the larger the later its streams are dropped for want of room."""
        ...

    def fault(self, peer: PeerId, reason: str) -> None:
        """The peer broke the framing, or keeps opening streams for nothing."""
        ...


class Transport(Protocol):
    """One peer's connection to the network. All methods belong to the event loop the transport was started on."""

    @property
    def peer_id(self) -> PeerId:
        """This peer's id, as other peers see it."""
        ...

    @property
    def addresses(self) -> tuple[str, ...]:
        """Dialable multiaddrs of this peer, each ending in `/p2p/<peer id>`. They change with relays and routers."""
        ...

    def set_receiver(self, on_frame: Receiver) -> None:
        """Set the callback for arriving frames. Until then no frame is acknowledged, so the peers' sends fail."""
        ...

    async def connect(self, address: str) -> PeerId:
        """Dial a multiaddr that ends in `/p2p/<peer id>` and return that peer. Raises `TransportError`."""
        ...

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
        """Return once the remote process holds the complete frame; raise `TransportError` otherwise.

        `frame` has 1 to `limits.MAX_FRAME_BYTES` bytes. After an error the frame may or may not have arrived. Frames
        to one peer that are of one size class (control or bulk, `framing.is_bulk`) arrive in the order of the calls.
        A slow bulk frame must not delay control frames.
        """
        ...

    async def put_record(self, key: bytes, value: bytes, expires_at: float) -> bool:
        """Publish `value` under (`key`, this peer), signed, until `expires_at` (Unix seconds).

        False when no replica took it, or one holds a record of this peer that expires later. A transport without a
        directory raises `TransportError`; its peers then know only their bootstrap peers and the peers that dial them.
        """
        ...

    async def get_records(self, key: bytes) -> dict[PeerId, bytes]:
        """The newest unexpired value of every owner under `key`, each with a verified owner signature.

        Raises `TransportError` when the directory does not answer or there is none.
        """
        ...

    async def wait_stopped(self) -> None:
        """Return when the transport has failed for good and must be started anew; never return otherwise."""
        ...

    async def close(self) -> None:
        """End every connection and process of this transport. May be called twice."""
        ...


@runtime_checkable
class MeetingTransport(Protocol):
    """A transport whose peers can meet although their routers refuse strangers. Others do without."""

    async def meet(self, address: str, *, dials: bool) -> None:
        """Dial a peer that dials this one at the same moment, from the port this peer listens on, for some seconds.

        Both sides dial; `dials` says which one the connection counts as opened by, and is different on the two. Returns
        once it stands: on the other side the connection is known by its first frame. A circuit to the peer ends then.
        Raises `TransportError`.
        """
        ...

    async def replace_circuit(self, address: str) -> PeerId:
        """Dial a peer without the circuit that leads to it, which ends; not unless somebody listens at the address.

        Raises `TransportError`.
        """
        ...


class LocalNetwork(Protocol):
    """A search of the local network, which lasts until it is closed."""

    async def announce(self, name: str, properties: Mapping[bytes, bytes], hosts: Sequence[str], port: int) -> None:
        """Answer others' searches with these properties, IP addresses and TCP port. A second announcement of a name
        replaces the first."""
        ...

    async def close(self) -> None:
        """End the search, and take the announcement back."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportConfig:
    """Arguments of a `TransportFactory`."""

    identity: Identity
    """This peer's key. Connections must prove it to the other side, and check the other side's."""
    listen: tuple[str, ...]
    """Multiaddrs to listen on, for instance `/ip4/0.0.0.0/tcp/0`; empty to only dial."""
    bootstrap: tuple[str, ...]
    """Multiaddrs of the join link, each ending in `/p2p/<peer id>`; empty for the first peer of a run."""
    clock: Clock
    """Unix time."""
    relays: tuple[str, ...] = ()
    """Multiaddrs of peers that may relay to this one if it cannot be dialed; of the join link, reachable now or not."""
    is_public: bool = False
    """Whether others can dial this peer, for certain: it need not find out, and relays to those that cannot."""
    maps_ports: bool = True
    """Whether to ask the home router for a port (UPnP, NAT-PMP), if the transport can."""
    guard: PeerGuard | None = None
    """Tells strangers from linked peers; a transport without one treats all alike."""
    max_links: int = 1_024
    """Peers that may be linked at once: the transport needs streams for all of them, and some more for newcomers."""
    pacer: Pacer | None = None
    """Upload cap: await `pacer.turn` before each slice of a bulk frame, call `pacer.charge` for control frames."""


TransportFactory = Callable[[TransportConfig], Awaitable[Transport]]
"""Starts a transport on the running event loop: listens, and joins the network through the bootstrap peers.

Raises `ConfigError` (a malformed address), `MachineError` (port in use, a library or binary missing) or
`UnreachableError` (no bootstrap peer answered), each with a remedy. It is called again without bootstrap peers when
they were unreachable and the run is already known from disk.
"""
