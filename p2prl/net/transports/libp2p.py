"""The light transport: py-libp2p instead of the daemon, speaking the same frames on the same wire.

For a peer that can have no foreign binary. It has no directory of its own (its records are read through the peers it
was given) and is some ten times slower than the daemon. py-libp2p lives on trio, so it runs in a thread of its own;
this file is the bridge. It cannot share a process with hivemind: both register the same protobuf names.

Noise only, always: py-libp2p's default also offers `/plaintext/2.0.0`, over which anyone who has seen a peer's public
key can be that peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from p2prl.errors import ConfigError, MachineError, RemoteProtocolError, TransportError, UnreachableError
from p2prl.net.ports import Receiver
from p2prl.net.transports import framing, library_logs, multiaddrs
from p2prl.protocol.identity import Identity, PeerId

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_S = 15.0
"""One dial; py-libp2p takes a constant quarter of a second even on one machine."""

_START_TIMEOUT_S = 20.0


class _Library:
    """py-libp2p's names, imported when a transport starts and not before."""

    def __init__(self) -> None:
        if "hivemind" in sys.modules:
            raise MachineError("hivemind and libp2p cannot share a process", remedy="Start a process for each.")
        if importlib.util.find_spec("libp2p") is None:
            raise MachineError("py-libp2p is not installed", remedy="pip install 'p2prl[libp2p]'")
        load = importlib.import_module
        self.trio: Any = load("trio")
        self.new_host: Any = load("libp2p").new_host
        self.ed25519: Any = load("libp2p.crypto.ed25519")
        self.x25519: Any = load("libp2p.crypto.x25519")
        self.noise: Any = load("libp2p.security.noise.transport")
        self.multiaddr: Any = load("multiaddr").Multiaddr
        self.peer_info: Any = load("libp2p.peer.peerinfo").info_from_p2p_addr
        self.peer_id: Any = load("libp2p.peer.id").ID
        self.failures: tuple[type[BaseException], ...] = (
            load("libp2p.exceptions").BaseLibp2pError,
            self.trio.BrokenResourceError,
            self.trio.ClosedResourceError,
            self.trio.EndOfChannel,
            OSError,
            EOFError,
            ValueError,  # addresses and states, depending on where a connection died
        )
        library_logs.route("libp2p")


class Libp2pTransport:
    """`ports.Transport` over py-libp2p, without a directory. Build it with `start`."""

    def __init__(self, identity: Identity, library: _Library) -> None:
        self.peer_id = identity.peer_id
        self.addresses: tuple[str, ...] = ()
        self._identity = identity
        self._library = library
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self._lanes: dict[tuple[PeerId, bool], _FrameStream] = {}
        self._inbound: dict[PeerId, list[Any]] = {}
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._thread: threading.Thread | None = None
        self._closed = False
        # Set by the trio thread before `_ready`:
        self._host: Any = None
        self._token: Any = None
        self._nursery: Any = None
        self._stop: Any = None

    @classmethod
    async def start(
        cls, identity: Identity, *, listen: Sequence[str] = (), bootstrap: Sequence[str] = ()
    ) -> Libp2pTransport:
        """Starts the thread, listens (on nothing by default: a light peer dials) and connects to `bootstrap`.

        Raises `MachineError` (library missing, port in use), `ConfigError` (a malformed address) or
        `UnreachableError` (no bootstrap peer answered).
        """
        for address in bootstrap:
            multiaddrs.split_peer(address)
        for address in listen:
            multiaddrs.to_bytes(address)
        transport = cls(identity, _Library())
        transport._thread = threading.Thread(
            target=transport._run_thread, args=(tuple(listen),), name="libp2p", daemon=True
        )
        transport._thread.start()
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await transport._ready
            await transport._bootstrap(bootstrap)
        except BaseException:
            await transport.close()
            raise
        return transport

    async def _bootstrap(self, bootstrap: Sequence[str]) -> None:
        results = await asyncio.gather(*map(self.connect, bootstrap), return_exceptions=True)
        if bootstrap and not any(isinstance(result, str) for result in results):
            raise UnreachableError(
                f"no peer of the run answered at {', '.join(bootstrap)}",
                remedy="Check your connection and firewall, or ask for a newer join link.",
            )

    def set_receiver(self, on_frame: Receiver) -> None:
        self._receiver = on_frame

    async def connect(self, address: str) -> PeerId:
        try:
            _, peer = multiaddrs.split_peer(address)
        except ConfigError as error:
            raise TransportError(str(error)) from error
        info = self._library.peer_info(self._library.multiaddr(address))
        try:
            await self._call(CONNECT_TIMEOUT_S, lambda: self._host.connect(info))
        except TransportError as error:
            raise TransportError(f"cannot reach {address}: {error}") from error
        return peer

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
        head = framing.header(frame)
        key = peer, framing.is_bulk(frame)
        try:
            await self._call(timeout_s, lambda: self._send(key, head, frame))
        except TransportError as error:
            raise TransportError(f"peer {peer} is out of reach: {error}") from error

    async def put_record(self, key: bytes, value: bytes, expires_at: float) -> bool:  # noqa: ARG002 - the port's
        raise TransportError("a light peer has no directory: it uses the bootstrap peers only")

    async def get_records(self, key: bytes) -> dict[PeerId, bytes]:  # noqa: ARG002 - the port's
        raise TransportError("a light peer has no directory: it uses the bootstrap peers only")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._token is not None:
            with contextlib.suppress(self._library.trio.RunFinishedError):  # it may have ended by itself
                self._token.run_sync_soon(self._stop.set)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 10)

    async def _call(self, timeout_s: float, work: Callable[[], Awaitable[T]]) -> T:
        """Runs `work` in the trio thread and gives its result or its failure as `TransportError`."""
        if self._closed:
            raise TransportError("this transport is closed")
        answer: asyncio.Future[T] = self._loop.create_future()
        trio = self._library.trio

        async def run() -> None:
            try:
                with trio.fail_after(timeout_s):
                    result = await work()
            except Exception as error:  # noqa: BLE001 - carried to the caller, who raises it
                self._tell(answer, None, error)
            else:
                self._tell(answer, result, None)

        try:
            self._token.run_sync_soon(lambda: self._nursery.start_soon(run))
        except trio.RunFinishedError as error:
            raise TransportError("the libp2p thread has ended") from error
        try:
            async with asyncio.timeout(timeout_s + 1):
                return await answer
        except (TimeoutError, trio.TooSlowError) as error:
            raise TransportError(f"no answer in {timeout_s:g} s") from error
        except self._library.failures as error:
            raise TransportError(f"{type(error).__name__}: {error}") from error

    def _tell(self, answer: asyncio.Future[T], result: Any, error: BaseException | None) -> None:
        def settle() -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(settle)

    def _run_thread(self, listen: tuple[str, ...]) -> None:
        try:
            self._library.trio.run(self._main, listen)
        except BaseException as error:  # noqa: BLE001 - the thread's outermost frame: its end must reach the loop
            causes = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
            why = "; ".join(str(cause) for cause in causes)
            reason = MachineError(f"libp2p ended: {why}", remedy="Listen on another port, or run p2prl doctor.")
            self._tell(self._ready, None, reason)

    async def _main(self, listen: tuple[str, ...]) -> None:
        library, trio = self._library, self._library.trio
        keys = library.ed25519.create_new_key_pair(self._identity.secret_seed)
        noise = library.noise.Transport(
            libp2p_keypair=keys, noise_privkey=library.x25519.create_new_key_pair().private_key
        )
        self._host = library.new_host(
            key_pair=keys, sec_opt={library.noise.PROTOCOL_ID: noise}, muxer_preference="YAMUX"
        )
        self._host.set_stream_handler(framing.FRAME_PROTOCOL, self._serve)
        running = self._host.run(listen_addrs=[library.multiaddr(address) for address in listen])
        async with running, trio.open_nursery() as self._nursery:
            self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
            found = [str(address).split("/p2p/")[0] for address in self._host.get_addrs()]
            self.addresses = tuple(f"{where}/p2p/{self.peer_id}" for where in found)
            self._tell(self._ready, None, None)
            await self._stop.wait()
            self._nursery.cancel_scope.cancel()

    async def _send(self, key: tuple[PeerId, bool], head: bytes, frame: bytes) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _FrameStream(self._library.trio.Lock())
        async with lane.turn:
            peer = self._library.peer_id.from_base58(key[0])
            try:
                if lane.stream is None:
                    lane.stream = await self._host.new_stream(peer, [framing.FRAME_PROTOCOL])
                await lane.stream.write(head + frame)
                await _expect_ack(lane.stream)
            except BaseException:
                # Also when cancelled: the answer of a frame that was given up would be taken for the next frame's.
                stream, lane.stream = lane.stream, None
                if stream is not None:
                    with self._library.trio.CancelScope(shield=True, deadline=self._library.trio.current_time() + 1):
                        await stream.reset()
                raise

    async def _serve(self, stream: Any) -> None:
        peer = multiaddrs.peer_of_multihash(stream.muxed_conn.peer_id.to_bytes())
        streams = self._inbound.setdefault(peer, []) if peer is not None else []
        full = sum(map(len, self._inbound.values())) >= framing.MAX_INBOUND_STREAMS
        try:
            if peer is None or full or len(streams) >= framing.MAX_INBOUND_STREAMS_PER_PEER:
                return
            streams.append(stream)
            while True:
                length = framing.frame_length(await _read_exactly(stream, framing.HEADER_BYTES))
                frame = await _read_exactly(stream, length)
                if self._receiver is None:
                    return
                self._loop.call_soon_threadsafe(self._receiver, peer, frame)
                await stream.write(framing.ACK)
        except self._library.failures as error:
            logger.debug("stream of %s ended: %r", peer, error)
        except RemoteProtocolError as error:
            logger.warning("dropped a stream of peer %s: %s", peer, error)
        finally:
            if stream in streams:
                streams.remove(stream)
            if peer is not None and not streams:
                self._inbound.pop(peer, None)
            with self._library.trio.CancelScope(shield=True, deadline=self._library.trio.current_time() + 1):
                await stream.reset()


class _FrameStream:
    """One stream to a peer, used for one frame at a time: py-libp2p is bound by its CPU, so more would gain nothing."""

    def __init__(self, turn: Any) -> None:
        self.turn = turn
        self.stream: Any = None


async def _expect_ack(stream: Any) -> None:
    if await stream.read(1) != framing.ACK:
        raise TransportError("the peer does not keep to the wire")


async def _read_exactly(stream: Any, size: int) -> bytes:
    parts, missing = [], size
    while missing:
        part = await stream.read(missing)
        if not part:
            raise EOFError("the stream ended")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
