"""The production transport: hivemind's go-libp2p daemon for connections, hivemind's Kademlia for the directory.

Frames travel over kept-open streams (`framing`, `lanes`); records through a `DHTNode` that believes nothing but
owner-signed values (`directory`, `records`). This process should do nothing else: one busy Python thread beside it was
measured to turn a stream's answer from 1.2 ms into 108 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import statistics
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from p2prl.clock import Clock, SystemClock
from p2prl.errors import ConfigError, LocalProtocolError, RemoteProtocolError, TransportError, UnreachableError
from p2prl.net.ports import Receiver
from p2prl.net.transports import framing, multiaddrs
from p2prl.net.transports.hivemind import light_import
from p2prl.net.transports.hivemind.daemon import Daemon, DaemonConfig
from p2prl.net.transports.hivemind.directory import start_directory
from p2prl.net.transports.hivemind.directory_records import MAX_RECORD_BYTES, MAX_RECORD_TTL_S
from p2prl.net.transports.pacing import Pacer
from p2prl.net.transports.streams import FrameStream, serve
from p2prl.protocol import limits
from p2prl.protocol.identity import SIGNATURE_BYTES, Identity, PeerId

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 15.0
"""One dial: three round trips through a relay on a bad line, and go-libp2p's own dial limit."""

DIRECTORY_TIMEOUT_S = 10.0
"""One directory operation; measured at 30 nodes: 31 to 140 ms."""

CLOCK_SKEW_WARNING_S = 2.0
"""The directory misbehaves when clocks differ by more than 3 s."""

_ADDRESS_REFRESH_S = 30.0
_MAX_LANES = 128
_MAX_KNOWN_PEERS = 4096


@dataclass(frozen=True, kw_only=True)
class HivemindOptions:
    """What differs between a laptop at home, a rented server and a test."""

    daemon: DaemonConfig = field(default_factory=DaemonConfig)
    """The daemon's own settings; its listen addresses are those given to `start`."""
    serve_directory: bool = True
    """Store records for others. False for a peer nobody can dial: lookups would wait for it in vain."""


class HivemindTransport:
    """`ports.Transport` over hivemind. Build it with `start`, on the event loop it shall live on."""

    def __init__(self, daemon: Daemon, p2p: Any, directory: Any, clock: Clock) -> None:
        self.peer_id = daemon.peer_id
        self.addresses: tuple[str, ...] = ()
        self.pacer: Pacer | None = None
        """Set it before the first frame to cap what chunks use of the uplink."""
        self._daemon = daemon
        self._p2p = p2p
        self._directory = directory
        self._clock = clock
        self._receiver: Receiver | None = None
        self._lanes: OrderedDict[tuple[PeerId, bool], FrameStream] = OrderedDict()
        self._inbound: dict[PeerId, list[asyncio.StreamWriter]] = {}
        self._known: OrderedDict[PeerId, bytes] = OrderedDict()
        self._skews: dict[PeerId, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @classmethod
    async def start(
        cls,
        identity: Identity,
        *,
        listen: Sequence[str] = ("/ip4/0.0.0.0/tcp/0",),
        bootstrap: Sequence[str] = (),
        options: HivemindOptions | None = None,
        clock: Clock | None = None,
    ) -> HivemindTransport:
        """Starts the daemon, joins the directory through `bootstrap` (none: found a new one) and listens.

        Raises `MachineError` (port in use, daemon missing), `ConfigError` (a malformed address) or `UnreachableError`
        (no bootstrap peer answered), each with a remedy. A wrong clock is `clock_skew_s` and a logged warning.
        """
        chosen = options or HivemindOptions()
        time_source = clock or SystemClock()
        for address in bootstrap:
            multiaddrs.split_peer(address)
        relays = chosen.daemon.relays or tuple(bootstrap)
        daemon = await Daemon.start(identity, replace(chosen.daemon, listen=tuple(listen), relays=relays))
        p2p = None
        try:
            p2p = await _join(daemon)
            directory = await start_directory(p2p, identity, time_source, serve=chosen.serve_directory)
            transport = cls(daemon, p2p, directory, time_source)
            await daemon.handle_streams(framing.FRAME_PROTOCOL, transport._accept)
            await transport._refresh_addresses()
            await transport._bootstrap(bootstrap)
        except BaseException:
            await _leave(p2p, daemon)
            raise
        transport._spawn(transport._watch())
        return transport

    @property
    def clock_skew_s(self) -> float | None:
        """Seconds this machine's clock is ahead of the peers it met (their median); None when it met none."""
        return statistics.median(self._skews.values()) if self._skews else None

    @property
    def daemon_pid(self) -> int:
        """Process id of the daemon."""
        return self._daemon.pid

    async def wait_stopped(self) -> None:
        """Returns when the daemon has ended; after that every call raises `TransportError`. Start a new transport."""
        await self._daemon.wait_stopped()

    def set_receiver(self, on_frame: Receiver) -> None:
        self._receiver = on_frame

    async def connect(self, address: str) -> PeerId:
        self._check_open()
        try:
            where, peer = multiaddrs.split_peer(address)
            raw = multiaddrs.to_bytes(where)
        except ConfigError as error:
            raise TransportError(str(error)) from error  # addresses mostly come from strangers' records
        if peer == self.peer_id:
            raise TransportError(f"{address} is this peer itself")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._daemon.connect(peer, (raw,))
                await self._introduce(peer)
        except TimeoutError as error:
            raise TransportError(f"{address} did not answer within {CONNECT_TIMEOUT_S:.0f} s") from error
        except TransportError as error:
            raise TransportError(f"cannot reach {address}: {error}") from error
        self._known[peer] = raw
        self._known.move_to_end(peer)
        if len(self._known) > _MAX_KNOWN_PEERS:
            self._known.popitem(last=False)
        return peer

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
        self._check_open()
        lane = self._lane(peer, bulk=framing.is_bulk(frame))
        try:
            async with asyncio.timeout(timeout_s):
                await lane.send(frame)
        except TimeoutError as error:
            raise TransportError(f"peer {peer} took no frame of {len(frame)} bytes in {timeout_s:g} s") from error
        except TransportError as error:
            raise TransportError(f"peer {peer} is out of reach: {error}") from error

    async def put_record(self, key: bytes, value: bytes, expires_at: float) -> bool:
        self._check_open()
        if len(value) + SIGNATURE_BYTES + 8 > MAX_RECORD_BYTES:
            raise LocalProtocolError(f"a directory record of {len(value)} bytes is too large")
        if expires_at > self._clock.now() + MAX_RECORD_TTL_S:
            raise LocalProtocolError(f"a directory record lives {MAX_RECORD_TTL_S:.0f} s at most")
        try:
            async with asyncio.timeout(DIRECTORY_TIMEOUT_S):
                return bool(await self._directory.store(key, value, float(expires_at), subkey=str(self.peer_id)))
        except TimeoutError as error:
            raise TransportError(f"the directory took no record in {DIRECTORY_TIMEOUT_S:.0f} s") from error

    async def get_records(self, key: bytes) -> dict[PeerId, bytes]:
        self._check_open()
        try:
            async with asyncio.timeout(DIRECTORY_TIMEOUT_S):
                found = await self._directory.get(key, latest=True)
        except TimeoutError as error:
            raise TransportError(f"the directory did not answer in {DIRECTORY_TIMEOUT_S:.0f} s") from error
        if found is None or not isinstance(found.value, dict):
            return {}
        now = self._clock.now()
        return {
            PeerId(owner): entry.value
            for owner, entry in found.value.items()
            if isinstance(entry.value, bytes) and entry.expiration_time > now
        }

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for lane in self._lanes.values():
            lane.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._directory.is_alive = False
        await _leave(self._p2p, self._daemon)

    def _check_open(self) -> None:
        if self._closed or self._directory is None:
            raise TransportError("this transport is closed")

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lane(self, peer: PeerId, *, bulk: bool) -> FrameStream:
        lane = self._lanes.get((peer, bulk))
        if lane is None or lane.closed:
            lane = FrameStream(lambda: self._open_stream(peer), pacer=self.pacer, bulk=bulk)
            self._lanes[peer, bulk] = lane
        self._lanes.move_to_end((peer, bulk))
        if len(self._lanes) > _MAX_LANES:
            _, oldest = self._lanes.popitem(last=False)
            oldest.close("the lane was given up for busier ones")
        return lane

    async def _open_stream(self, peer: PeerId) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await self._daemon.open_stream(peer, framing.FRAME_PROTOCOL)
        except TransportError:
            if peer not in self._known:
                raise
        # The daemon forgets addresses minutes after a connection ends; we keep what `connect` was given.
        await self._daemon.connect(peer, (self._known[peer],))
        return await self._daemon.open_stream(peer, framing.FRAME_PROTOCOL)

    async def _accept(self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams = self._inbound.setdefault(peer, [])
        if sum(map(len, self._inbound.values())) >= framing.MAX_INBOUND_STREAMS:
            logger.debug("refused a stream of %s: too many streams", peer)
            return
        if len(streams) >= framing.MAX_INBOUND_STREAMS_PER_PEER:
            streams.pop(0).transport.abort()
        streams.append(writer)
        try:
            await serve(reader, writer, lambda frame: self._deliver(peer, frame))
        except RemoteProtocolError as error:
            logger.warning("dropped a stream of peer %s: %s", peer, error)
        finally:
            if writer in streams:
                streams.remove(writer)
            if not streams and self._inbound.get(peer) is streams:
                del self._inbound[peer]

    def _deliver(self, peer: PeerId, frame: bytes) -> None:
        if self._receiver is None:
            raise EOFError("no receiver yet")  # ends the stream: the sender's frame fails and is tried again
        # On its own turn of the loop: what the receiver raises is the loop's to report, not this stream's to die of.
        asyncio.get_running_loop().call_soon(self._receiver, peer, frame)

    async def _bootstrap(self, bootstrap: Sequence[str]) -> None:
        others = [address for address in bootstrap if multiaddrs.split_peer(address)[1] != self.peer_id]
        results = await asyncio.gather(*map(self.connect, others), return_exceptions=True)
        for result in results:
            if isinstance(result, TransportError):
                logger.debug("%s", result)  # when no other answered either, the error below says it
            elif isinstance(result, BaseException):
                raise result
        if others and not any(isinstance(result, str) for result in results):
            raise UnreachableError(
                f"no peer of the run answered at {', '.join(others)}",
                remedy="Check your connection and firewall, or ask for a newer join link.",
            )
        skew = self.clock_skew_s
        # Past what the wire tolerates the node itself tells the person, with the remedy: once is enough.
        if skew is not None and CLOCK_SKEW_WARNING_S < abs(skew) <= limits.MAX_CLOCK_SKEW_S:
            logger.warning(
                "this machine's clock is %.1f s %s the swarm's: its directory records will be refused or short-lived. "
                "Turn on automatic time (NTP).",
                abs(skew),
                "ahead of" if skew > 0 else "behind",
            )
        if others:
            await self._directory.find_nearest_nodes([self._directory.node_id])

    async def _introduce(self, peer: PeerId) -> None:
        """Enters a peer in the directory's routing table and compares clocks. A peer without a directory is fine."""
        library = light_import.load()
        protocol = self._directory.protocol
        remote = library.PeerID.from_base58(peer)
        sent_at = self._clock.now()
        try:
            request = library.dht_pb2.PingRequest(peer=protocol.node_info, validate=False)
            reply = await protocol.get_stub(remote).rpc_ping(request, timeout=protocol.wait_timeout)
        except (library.P2PDaemonError, library.P2PHandlerError, TimeoutError) as error:
            logger.debug("peer %s keeps no directory: %s", peer, error)
            return
        if reply.dht_time:
            self._skews[peer] = (sent_at + self._clock.now()) / 2 - reply.dht_time
            while len(self._skews) > 64:
                del self._skews[next(iter(self._skews))]
        if reply.peer.node_id:
            node_id = type(self._directory.node_id).from_bytes(reply.peer.node_id)
            await protocol.update_routing_table(node_id, remote, responded=True)

    async def _refresh_addresses(self) -> None:
        self.addresses = await self._daemon.identify()

    async def _watch(self) -> None:
        """Follows the addresses (relays and routers come and go) and notices the daemon's end."""
        stopped = asyncio.create_task(self._daemon.wait_stopped())
        try:
            while not stopped.done():
                await asyncio.wait({stopped}, timeout=_ADDRESS_REFRESH_S)
                with contextlib.suppress(TransportError):
                    await self._refresh_addresses()
        finally:
            stopped.cancel()
        logger.error("the network daemon ended")
        for lane in self._lanes.values():
            lane.close("the network daemon ended")


class _LivePending(dict[Any, Any]):
    """hivemind's table of calls in flight, blind to calls that were given up.

    Its reader sets a result on whatever is listed. A call that timed out stays listed for one turn of the loop; an
    answer in that turn would raise InvalidStateError and end the reader, leaving this peer deaf for good.
    """

    def __contains__(self, call: object) -> bool:
        future = self.get(call)
        return future is not None and not future.done()


async def _join(daemon: Daemon) -> Any:
    """hivemind's `P2P`, joined to our daemon with its sockets in our private folder."""
    library = light_import.load()
    private = type("PrivateP2P", (library.P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{daemon.folder}/"})
    try:
        p2p = await private.replicate(library.Multiaddr(f"/unix{daemon.control_path}"))  # type: ignore[attr-defined]
    except (OSError, EOFError, library.P2PDaemonError) as error:
        raise TransportError(f"the network daemon does not answer: {error}") from error
    p2p._client.control._pending_calls = _LivePending(p2p._client.control._pending_calls)
    return p2p


async def _leave(p2p: Any, daemon: Daemon) -> None:
    if p2p is not None:
        control = p2p._client.control
        await p2p.shutdown()
        await asyncio.gather(control._read_task, control._write_task, return_exceptions=True)
    await daemon.close()
