"""The light transport: py-libp2p instead of the daemon, with the same frames on the same wire.

For a peer that cannot run a native binary. It has no directory: it knows only its bootstrap peers and the peers that
dial it. It meets nobody behind a router, and carries half of what the daemon does.

Noise only, always: py-libp2p's default also offers `/plaintext/2.0.0`, over which anyone who has seen a peer's public
key can impersonate that peer.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from p2prl.errors import ConfigError, RemoteProtocolError, TransportError
from p2prl.net.pacing import SLICE_BYTES, Pacer
from p2prl.net.ports import PeerGuard, Receiver, TransportConfig
from p2prl.net.transports import framing, multiaddrs
from p2prl.net.transports.bootstrap import dial_bootstrap
from p2prl.net.transports.inbound_streams import NoGuard
from p2prl.net.transports.interface_addresses import expand_wildcard
from p2prl.net.transports.libp2p.library import Library
from p2prl.net.transports.libp2p.trio_thread import TrioThread
from p2prl.protocol.identity import Identity, PeerId

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 15.0
"""One dial; py-libp2p takes a constant quarter of a second even on one machine."""

_RESET_S = 1.0
"""How long the reset of a broken stream may take."""

_NO_DIRECTORY = "the libp2p transport has no directory: it uses the bootstrap peers only"


class Libp2pTransport:
    """`ports.Transport` over py-libp2p, without a directory. Build it with `start`."""

    def __init__(
        self, identity: Identity, library: Library, *, pacer: Pacer | None, guard: PeerGuard | None, max_links: int
    ) -> None:
        self._guard: PeerGuard = guard or NoGuard()
        self._max_streams = framing.max_streams(max_links)
        self.peer_id = identity.peer_id
        self.addresses: tuple[str, ...] = ()
        self._identity = identity
        self._library = library
        self._pacer = pacer
        self._trio = TrioThread(library)
        self._receiver: Receiver | None = None
        self._outbound: dict[tuple[PeerId, bool], _OutboundStream] = {}
        self._inbound: dict[PeerId, list[Any]] = {}
        self._host: Any = None

    @classmethod
    async def start(
        cls,
        identity: Identity,
        *,
        listen: Sequence[str] = (),
        bootstrap: Sequence[str] = (),
        pacer: Pacer | None = None,
        guard: PeerGuard | None = None,
        max_links: int = 1_024,
    ) -> Libp2pTransport:
        """Start the thread, listen (on nothing by default: a light peer dials) and connect to `bootstrap`.

        Raises `MachineError` (port in use), `ConfigError` (library missing, a malformed address) or
        `UnreachableError` (no bootstrap peer answered).
        """
        for address in bootstrap:
            multiaddrs.split_peer(address)
        for address in listen:
            multiaddrs.to_bytes(address)
        transport = cls(identity, Library(), pacer=pacer, guard=guard, max_links=max_links)
        try:
            await transport._trio.start(lambda: transport._run_host(tuple(listen)))
            await dial_bootstrap(transport, bootstrap)
        except BaseException:
            await transport.close()
            raise
        return transport

    def set_receiver(self, on_frame: Receiver) -> None:
        self._receiver = on_frame

    async def connect(self, address: str) -> PeerId:
        try:
            _, peer = multiaddrs.split_peer(address)
        except ConfigError as error:
            raise TransportError(str(error)) from error
        if peer == self.peer_id:
            raise TransportError(f"{address} is this peer itself")
        info = self._library.peer_info(self._library.multiaddr(address))
        try:
            await self._trio.call(CONNECT_TIMEOUT_S, lambda: self._host.connect(info))
        except TransportError as error:
            raise TransportError(f"cannot reach {address}: {error}") from error
        return peer

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
        head = framing.header(frame)
        key = peer, framing.is_bulk(frame)
        try:
            await self._trio.call(timeout_s, lambda: self._send(key, head, frame))
        except TransportError as error:
            raise TransportError(f"peer {peer} is out of reach: {error}") from error

    async def put_record(self, key: bytes, value: bytes, expires_at: float) -> bool:  # noqa: ARG002 - the port's
        raise TransportError(_NO_DIRECTORY)

    async def get_records(self, key: bytes) -> dict[PeerId, bytes]:  # noqa: ARG002 - the port's
        raise TransportError(_NO_DIRECTORY)

    async def wait_stopped(self) -> None:
        await self._trio.wait_stopped()

    async def close(self) -> None:
        await self._trio.close()

    # --- on trio -----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _run_host(self, listen: tuple[str, ...]) -> AsyncIterator[None]:
        library = self._library
        keys = library.ed25519.create_new_key_pair(self._identity.secret_seed)
        noise = library.noise.Transport(
            libp2p_keypair=keys, noise_privkey=library.x25519.create_new_key_pair().private_key
        )
        self._host = library.new_host(
            key_pair=keys, sec_opt={library.noise.PROTOCOL_ID: noise}, muxer_preference="YAMUX"
        )
        self._host.set_stream_handler(framing.FRAME_PROTOCOL, self._serve)
        self._host.set_stream_handler(framing.VERSION_PROTOCOL, self._reset)
        async with self._host.run(listen_addrs=[library.multiaddr(address) for address in listen]):
            found = [str(address).split("/p2p/")[0] for address in self._host.get_addrs()]
            dialable = [where for address in found for where in expand_wildcard(address)]
            self.addresses = tuple(f"{where}/p2p/{self.peer_id}" for where in dialable)
            yield

    async def _send(self, key: tuple[PeerId, bool], head: bytes, frame: bytes) -> None:
        outbound = self._outbound.get(key)
        if outbound is None:
            outbound = self._outbound[key] = _OutboundStream(self._library.trio.Lock())
        async with outbound.turn:
            peer = self._library.peer_id.from_base58(key[0])
            try:
                if outbound.stream is None:
                    outbound.stream = await self._host.new_stream(peer, [framing.FRAME_PROTOCOL])
                await self._write(outbound.stream, head, frame, bulk=key[1])
                await _expect_ack(outbound.stream)
            except BaseException:
                # Also when cancelled: the acknowledgement of an abandoned frame would be taken for the next frame's.
                stream, outbound.stream = outbound.stream, None
                if stream is not None:
                    await self._reset(stream)
                raise

    async def _write(self, stream: Any, head: bytes, frame: bytes, *, bulk: bool) -> None:
        """Write a frame; under an upload cap, chunks leave in slices at the pacer's rate."""
        pacer = self._pacer
        if pacer is not None and not bulk:
            self._trio.call_asyncio(pacer.charge, len(frame))
        if pacer is None or not bulk or not pacer.rate_bytes_s:
            await stream.write(head + frame)
            return
        ticket = pacer.ticket()
        await stream.write(head)
        for start in range(0, len(frame), SLICE_BYTES):
            part = frame[start : start + SLICE_BYTES]
            await self._trio.await_asyncio(partial(pacer.turn, ticket, len(part)))
            await stream.write(part)

    async def _serve(self, stream: Any) -> None:
        peer = multiaddrs.peer_of_multihash(stream.muxed_conn.peer_id.to_bytes())
        streams = self._inbound.setdefault(peer, []) if peer is not None else []
        full = sum(map(len, self._inbound.values())) >= self._max_streams
        trio = self._library.trio
        try:
            if (
                peer is None
                or self._guard.is_banned(peer)
                or full
                or len(streams) >= framing.MAX_INBOUND_STREAMS_PER_PEER
            ):
                return
            streams.append(stream)
            while True:
                length = framing.frame_length(await _read_exactly(stream, framing.HEADER_BYTES))
                with trio.move_on_after(framing.frame_deadline_s(length)) as deadline:
                    frame = await _read_exactly(stream, length)
                if deadline.cancelled_caught:
                    return
                if self._receiver is None:
                    return
                self._trio.call_asyncio(self._receiver, peer, frame)
                await stream.write(framing.ACK)
        except self._library.failures as error:
            logger.debug("stream of %s ended: %r", peer, error)
        except RemoteProtocolError as error:
            logger.debug("dropped a stream of peer %s: %s", peer, error)
            if peer is not None:
                self._trio.call_asyncio(self._guard.fault, peer, str(error))
        finally:
            if stream in streams:
                streams.remove(stream)
            if peer is not None and not streams:
                self._inbound.pop(peer, None)
            await self._reset(stream)

    async def _reset(self, stream: Any) -> None:
        trio = self._library.trio
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _RESET_S):
            await stream.reset()


async def start_libp2p(config: TransportConfig) -> Libp2pTransport:
    """The `TransportFactory` of `libp2p`."""
    return await Libp2pTransport.start(
        config.identity,
        listen=config.listen,
        bootstrap=config.bootstrap,
        pacer=config.pacer,
        guard=config.guard,
        max_links=config.max_links,
    )


class _OutboundStream:
    """The outgoing stream of one size class to one peer, and the lock of the frame that is being sent."""

    def __init__(self, turn: Any) -> None:
        self.turn = turn
        self.stream: Any = None


async def _expect_ack(stream: Any) -> None:
    if await stream.read(1) != framing.ACK:
        raise TransportError("the peer violates the frame protocol")


async def _read_exactly(stream: Any, size: int) -> bytes:
    parts, missing = [], size
    while missing:
        part = await stream.read(missing)
        if not part:
            raise EOFError("the stream ended")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
