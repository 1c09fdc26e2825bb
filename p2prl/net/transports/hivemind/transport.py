"""The default transport: hivemind's go-libp2p daemon for connections, hivemind's Kademlia DHT for the directory.

Frames travel over kept-open streams (`framing`, `streams`), records through a DHT node that accepts only owner-signed
values (`hardened_dht`, `directory_records`). The process should do nothing else: one busy Python thread beside it
raised the latency of a stream's acknowledgement from 1.2 ms to 108 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from p2prl.clock import Clock, SystemClock
from p2prl.errors import ConfigError, TransportError
from p2prl.net.listen_addresses import ANY_IPV4
from p2prl.net.pacing import Pacer
from p2prl.net.ports import PeerGuard, Receiver, TransportConfig
from p2prl.net.transports import framing, multiaddrs
from p2prl.net.transports.bootstrap import dial_bootstrap
from p2prl.net.transports.hivemind import light_import
from p2prl.net.transports.hivemind.daemon import Daemon
from p2prl.net.transports.hivemind.daemon_config import DaemonConfig
from p2prl.net.transports.hivemind.dial_back import PROTOCOL, DialBack
from p2prl.net.transports.hivemind.directory import Directory
from p2prl.net.transports.hivemind.relay_slots import RelaySlots
from p2prl.net.transports.inbound_streams import InboundStreams
from p2prl.net.transports.interface_addresses import routable_families
from p2prl.net.transports.outbound_streams import OutboundStreams
from p2prl.net.transports.simultaneous_open import (
    Splices,
    dial_in_short_packets,
    open_simultaneously,
    own_endpoint,
    shared_socket,
)
from p2prl.net.transports.tcp_trial import accepts_connection, can_be_tried, loses_long_packets
from p2prl.protocol.identity import Identity, PeerId


class _LivePending(dict[Any, Any]):
    """hivemind's table of calls in flight, without abandoned calls.

    Its reader sets a result on every call listed. A call that timed out stays listed for one turn of the loop; an
    answer in that turn would raise InvalidStateError and end the reader, and this peer would never receive another
    answer.
    """

    def __contains__(self, call: object) -> bool:
        future = self.get(call)
        return future is not None and not future.done()


async def join_daemon(daemon: Daemon) -> Any:
    """hivemind's `P2P` on our daemon, with its sockets in our private folder. Raises `TransportError`."""
    library = light_import.load()
    private = type("PrivateP2P", (library.P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{daemon.folder}/"})
    try:
        p2p = await private.replicate(library.Multiaddr(f"/unix{daemon.control_path}"))  # type: ignore[attr-defined]
    except (OSError, EOFError, library.P2PDaemonError) as error:
        raise TransportError(f"the network daemon does not answer: {error}") from error
    p2p._client.control._pending_calls = _LivePending(p2p._client.control._pending_calls)
    return p2p


async def leave_daemon(p2p: Any) -> None:
    """Close the client's connections; the daemon itself keeps running."""
    control = p2p._client.control
    await p2p.shutdown()
    await asyncio.gather(control._read_task, control._write_task, return_exceptions=True)


logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 15.0
"""One dial: three round trips through a relay on a bad line, and go-libp2p's own dial limit."""

_ADDRESS_REFRESH_S = 10.0

_EARLY_REFRESH_S, _EARLY_S = 3.0, 90.0
"""In the first minute and a half the daemon learns how others reach it: a circuit that stands after 17 s should be in
this peer's record then, and not at the next look."""

_ANEW_S = 6
"""A dial past a circuit lasts this long: SYNs after 0, 1 and 3 s."""

_SHORT_TRIES = 3
"""The daemon also dials the addresses of the peer that it knows, and takes what stands first: nearly always the
connection that it is lent, which is a round trip ahead."""

_MAX_KNOWN_PEERS = 4096
"""Addresses remembered for reconnecting, and addresses whose dial failed."""


class HivemindTransport:
    """`ports.Transport` over hivemind. Build it with `start`, on the event loop it will run on.

    More than twelve attributes, because streams, slots and meetings of all peers go through one daemon.
    """

    def __init__(
        self,
        daemon: Daemon,
        directory: Directory,
        *,
        pacer: Pacer | None,
        guard: PeerGuard | None = None,
        relays: Sequence[str] = (),
        max_links: int = 1_024,
    ) -> None:
        self.peer_id = daemon.peer_id
        self.addresses: tuple[str, ...] = ()
        self._daemon = daemon
        self._directory = directory
        self._guard = guard
        self._inbound = InboundStreams(guard, max_links=max_links)
        self._outbound = OutboundStreams(self._open_stream, max_links=max_links, pacer=pacer)
        self._known: OrderedDict[PeerId, bytes] = OrderedDict()
        """Binary address of every peer that `connect` reached."""
        self._failed: OrderedDict[str, None] = OrderedDict()
        """Addresses whose last dial failed."""
        self._slots = RelaySlots(daemon.open_stream, own=self.peer_id, candidates=relays)
        self._splices = Splices()
        self._meeting: set[PeerId] = set()
        self._in_short_packets = False
        """Whether this machine's line loses long packets: then its connections are this process's, of short ones."""
        self._watching: asyncio.Task[None] | None = None
        self._cleanup = contextlib.AsyncExitStack()
        """Ends the directory, hivemind's client and the daemon, in this order."""
        self._closed = False

    @classmethod
    async def start(
        cls,
        identity: Identity,
        *,
        listen: Sequence[str] = (ANY_IPV4,),
        bootstrap: Sequence[str] = (),
        relays: Sequence[str] | None = None,
        daemon_config: DaemonConfig | None = None,
        clock: Clock | None = None,
        pacer: Pacer | None = None,
        guard: PeerGuard | None = None,
        max_links: int = 1_024,
    ) -> HivemindTransport:
        """Start the daemon, join the directory through `bootstrap` (none: start a new one) and listen.

        Raises `MachineError` (port in use, daemon missing), `ConfigError` (a malformed address) or `UnreachableError`
        (no bootstrap peer answered), each with a remedy. A wrong clock is logged as a warning.

        `relays` are relay candidates, the bootstrap peers by default.
        """
        time_source = clock or SystemClock()
        for address in bootstrap:
            multiaddrs.split_peer(address)
        chosen = replace(
            daemon_config or DaemonConfig(),
            listen=tuple(listen),
            relays=tuple(bootstrap if relays is None else relays),
            max_links=max_links,
        )
        async with contextlib.AsyncExitStack() as cleanup:
            trial = asyncio.create_task(loses_long_packets(bootstrap))
            cleanup.callback(trial.cancel)
            daemon = await Daemon.start(identity, chosen)
            cleanup.push_async_callback(daemon.close)
            p2p = await join_daemon(daemon)
            cleanup.push_async_callback(leave_daemon, p2p)
            directory = await Directory.start(p2p, identity, time_source, guard)
            cleanup.callback(directory.close)
            candidates = () if chosen.is_public else chosen.relays
            transport = cls(daemon, directory, pacer=pacer, guard=guard, relays=candidates, max_links=max_links)
            await daemon.handle_streams(framing.FRAME_PROTOCOL, transport._accept)
            await daemon.handle_streams(framing.VERSION_PROTOCOL, _hang_up)
            if chosen.is_public:
                await daemon.handle_streams(PROTOCOL, DialBack(time_source).answer)
            await transport.refresh_addresses()
            transport._in_short_packets = await trial
            if transport._in_short_packets:
                logger.warning("packets of full size are lost on this machine's line: connections use shorter ones")
            reached = await dial_bootstrap(transport, bootstrap)
            directory.warn_of_skew()
            if reached:
                await directory.join()
            transport._cleanup = cleanup.pop_all()
        transport._watching = asyncio.create_task(transport._watch())
        return transport

    async def wait_stopped(self) -> None:
        """Return when the daemon has ended; after that every call raises `TransportError`. Start a new transport."""
        await self._daemon.wait_stopped()

    def set_receiver(self, on_frame: Receiver) -> None:
        self._inbound.receiver = on_frame

    async def connect(self, address: str) -> PeerId:
        self._check_open()
        try:
            where, peer = multiaddrs.split_peer(address)
            raw = multiaddrs.to_bytes(where)
        except ConfigError as error:
            raise TransportError(str(error)) from error  # addresses mostly come from strangers' records
        if peer == self.peer_id:
            raise TransportError(f"{address} is this peer itself")
        # The daemon refuses to dial an address for longer after each failure, five minutes in the end: homes came back
        # to a learner that had been away for ten minutes after two. So it is not asked while nobody listens there.
        if where in self._failed and can_be_tried(where) and not await accepts_connection(where):
            raise TransportError(f"{address} accepts no connection")
        self._note_failed(where)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._reach(peer, where, raw)
                await self._note_reached(peer, where)
                await self._directory.introduce(peer)
        except TimeoutError as error:
            raise TransportError(f"{address} did not answer within {CONNECT_TIMEOUT_S:.0f} s") from error
        except TransportError as error:
            raise TransportError(f"cannot reach {address}: {error}") from error
        self._failed.pop(where, None)
        self._remember(peer, raw)
        if self._slots.reached(address, peer):  # nobody reaches this peer before it has a slot there again
            with contextlib.suppress(TransportError):
                await self.refresh_addresses()
        return peer

    async def _reach(self, peer: PeerId, where: str, raw: bytes) -> None:
        """Let the daemon dial, or lend it a connection of short packets where the line takes no others."""
        if not (self._in_short_packets and can_be_tried(where)):
            await self._daemon.connect(peer, (raw,))
            return
        for _ in range(_SHORT_TRIES):
            direct = [each for each in await self._daemon.remotes(peer) if "/p2p-circuit" not in each]
            if direct and all(map(self._splices.carries, direct)):
                return
            await self._dial_anew(peer, where)

    async def meet(self, address: str, *, dials: bool) -> None:
        self._check_open()
        where, peer = multiaddrs.split_peer(address)
        if peer in self._meeting:
            raise TransportError(f"a meeting with {peer} is under way")
        parts = where.split("/")
        family = socket.AF_INET6 if parts[1] == "ip6" else socket.AF_INET
        daemon = own_endpoint(self.addresses, parts[1])
        self._meeting.add(peer)
        try:
            connection = await open_simultaneously((parts[2], int(parts[4])), lambda: shared_socket(family, daemon[1]))
            if not dials:
                await self._splices.deliver(connection, where, daemon)
                return
            await self._dial_anew(peer, where, connection)
        finally:
            self._meeting.discard(peer)
        await self._note_reached(peer, where)
        await self._directory.introduce(peer)

    async def replace_circuit(self, address: str) -> PeerId:
        if not await accepts_connection(address):
            raise TransportError(f"{address} accepts no connection")
        where, peer = multiaddrs.split_peer(address)
        await self._dial_anew(peer, where)
        await self._note_reached(peer, where)
        await self._directory.introduce(peer)
        self._remember(peer, multiaddrs.to_bytes(where))
        return peer

    async def _dial_anew(self, peer: PeerId, where: str, lent: socket.socket | None = None) -> None:
        """Dial without the connections that there may be: the daemon dials nobody it is connected with.

        It gets `lent`, a connection with `where`, or one in short packets where the line takes no others.
        """
        self._check_open()
        with contextlib.suppress(TransportError):
            await self._daemon.disconnect(peer)
        if lent is None and self._in_short_packets and can_be_tried(where):
            lent = await dial_in_short_packets(where, self.addresses)
        raw = multiaddrs.to_bytes(where if lent is None else self._splices.offer(lent, where))
        await self._daemon.connect(peer, (raw,), timeout_s=_ANEW_S)

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
        self._check_open()
        await self._outbound.send(peer, frame, timeout_s=timeout_s)

    async def put_record(self, key: bytes, value: bytes, expires_at: float) -> bool:
        self._check_open()
        return await self._directory.put(key, value, expires_at)

    async def get_records(self, key: bytes) -> dict[PeerId, bytes]:
        self._check_open()
        return await self._directory.get(key)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._outbound.close()
        self._splices.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._cleanup.aclose()

    async def _accept(
        self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen_at: str
    ) -> None:
        await self._inbound.accept(peer, reader, writer, self._splices.address_of(seen_at))

    async def _note_reached(self, peer: PeerId, dialed: str) -> None:
        """Tell the guard where the connection with a peer is, as its socket shows it: the daemon dials nobody that it
        has a circuit with, and calls that a success."""
        if self._guard is None:
            return
        seen = [self._splices.address_of(each) for each in await self._daemon.remotes(peer)]
        direct = [each for each in seen if "/p2p-circuit" not in each]
        self._guard.note_address(peer, dialed if dialed in seen else next(iter((*direct, *seen)), dialed))

    def _remember(self, peer: PeerId, raw: bytes) -> None:
        """Note where the daemon may dial a peer again by itself: in packets of any size."""
        if self._in_short_packets:
            return
        self._known[peer] = raw
        self._known.move_to_end(peer)
        if len(self._known) > _MAX_KNOWN_PEERS:
            self._known.popitem(last=False)

    def _note_failed(self, where: str) -> None:
        """Until the dial succeeds, it counts as failed."""
        self._failed[where] = None
        self._failed.move_to_end(where)
        if len(self._failed) > _MAX_KNOWN_PEERS:
            self._failed.popitem(last=False)

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("this transport is closed")

    async def _open_stream(self, peer: PeerId) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await self._daemon.open_stream(peer, framing.FRAME_PROTOCOL)
        except TransportError:
            if peer not in self._known:
                raise
        # The daemon forgets addresses minutes after a connection ends; we keep the one `connect` was given.
        await self._daemon.connect(peer, (self._known[peer],))
        return await self._daemon.open_stream(peer, framing.FRAME_PROTOCOL)

    async def refresh_addresses(self) -> None:
        """Ask the daemon at which addresses others may dial this peer."""
        now = asyncio.get_running_loop().time()
        self.addresses = await self._slots.completed(await self._daemon.identify(), now)

    async def _watch(self) -> None:
        """Keep `addresses` up to date (relays and routers come and go) and notice the daemon's end."""
        stopped = asyncio.create_task(self._daemon.wait_stopped())
        loop = asyncio.get_running_loop()
        is_early_until = loop.time() + _EARLY_S
        try:
            while not stopped.done():
                pause_s = _EARLY_REFRESH_S if loop.time() < is_early_until else _ADDRESS_REFRESH_S
                await asyncio.wait({stopped}, timeout=pause_s)
                with contextlib.suppress(TransportError):
                    await self.refresh_addresses()
        finally:
            stopped.cancel()
        logger.error("the network daemon ended")
        self._outbound.close("the network daemon ended")


async def _hang_up(*_stream: object) -> None:
    """The daemon ends a stream when its callback returns."""


async def start_hivemind(config: TransportConfig) -> HivemindTransport:
    """The `TransportFactory` of `hivemind`."""
    return await HivemindTransport.start(
        config.identity,
        listen=config.listen,
        bootstrap=config.bootstrap,
        relays=config.relays,
        daemon_config=DaemonConfig(
            is_public=config.is_public,
            families=routable_families() or frozenset({4, 6}),
            nat_port_map=config.maps_ports,
        ),
        clock=config.clock,
        pacer=config.pacer,
        guard=config.guard,
        max_links=config.max_links,
    )
