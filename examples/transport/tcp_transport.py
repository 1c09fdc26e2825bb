"""A transport over plain TCP for machines of one trusted network: no daemon, no relays, no directory.

Install it beside p2prl (`pip install ./examples/transport`) and select it: `p2prl join LINK --transport tcp`. All peers
of a run must use it, and must be able to dial each other.

Each peer sends on connections it opened and receives on connections that others opened. Both sides of a connection
prove their key (`_shake_hands`), but frames are neither encrypted nor protected against a machine in the middle. p2prl
checks every signature and hash itself, so such a machine can read, delay and drop messages, but not forge them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct

from p2prl.errors import ConfigError, MachineError, TransportError
from p2prl.net.ports import Receiver, TransportConfig
from p2prl.net.transports.bootstrap import dial_bootstrap
from p2prl.net.transports.inbound_streams import InboundStreams
from p2prl.net.transports.interface_addresses import expand_wildcard
from p2prl.net.transports.multiaddrs import split_peer
from p2prl.net.transports.outbound_streams import OutboundStreams
from p2prl.protocol.identity import SIGNATURE_BYTES, PeerId, peer_id_of, verify_raw

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_TIMEOUT_S = 10.0
_DOMAIN = b"p2prl-example-tcp/v1"
"""Domain prefix: a signature over it cannot be reused for anything else."""
_HELLO = struct.Struct(">32s32sH")
"""Public key, random challenge, port this peer listens on."""


class TcpTransport:
    """`p2prl.net.ports.Transport` over TCP."""

    def __init__(self, config: TransportConfig) -> None:
        self.peer_id = config.identity.peer_id
        self.addresses: tuple[str, ...] = ()
        self._identity = config.identity
        self._dialable: dict[PeerId, tuple[str, int]] = {}
        self._inbound = InboundStreams(config.guard, max_links=config.max_links)
        self._outbound = OutboundStreams(self._open_stream, max_links=config.max_links, pacer=config.pacer)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._serving: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()

    async def listen(self, address: str) -> None:
        """Accept connections at a multiaddr. Raises `ConfigError` or `MachineError`."""
        host, port = _host_and_port(address)
        try:
            self._server = await asyncio.start_server(self._accept, host, port)
        except OSError as error:
            raise MachineError(f"cannot listen on {address}: {error}", remedy="Choose another port.") from error
        self._port = self._server.sockets[0].getsockname()[1]
        self.addresses = tuple(
            f"{where}/p2p/{self.peer_id}" for where in expand_wildcard(f"/ip4/{host}/tcp/{self._port}")
        )

    def set_receiver(self, on_frame: Receiver) -> None:
        self._inbound.receiver = on_frame

    async def connect(self, address: str) -> PeerId:
        """Dial a peer; both sides prove their identity and learn the other's address."""
        try:
            where, peer = split_peer(address)
            place = _host_and_port(where)
        except ConfigError as error:
            raise TransportError(str(error)) from error  # addresses mostly come from strangers' records
        _, writer = await self._dial(peer, *place)
        writer.close()
        self._dialable[peer] = place
        return peer

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
        await self._outbound.send(peer, frame, timeout_s=timeout_s)

    async def put_record(self, key: bytes, value: bytes, expires_at: float) -> bool:  # noqa: ARG002 - the port's
        raise TransportError("the tcp transport has no directory")

    async def get_records(self, key: bytes) -> dict[PeerId, bytes]:  # noqa: ARG002 - the port's
        raise TransportError("the tcp transport has no directory")

    async def wait_stopped(self) -> None:
        await self._closed.wait()

    async def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._outbound.close()
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _open_stream(self, peer: PeerId) -> Streams:
        if peer not in self._dialable or self._closed.is_set():
            raise TransportError("no address is known")
        return await self._dial(peer, *self._dialable[peer])

    async def _dial(self, peer: PeerId, host: str, port: int) -> Streams:
        """A connection to a peer, with its key checked."""
        writer = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, port)
                found, _ = await self._shake_hands(reader, writer)
        except (OSError, EOFError) as error:  # TimeoutError is an OSError
            if writer is not None:
                writer.transport.abort()
            raise TransportError(f"no answer at {host}:{port}: {error}") from error
        if found != peer:
            writer.transport.abort()
            raise TransportError(f"a different peer answered at {host}:{port}")
        return reader, writer

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection that a peer opened."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        # Ends when the peer closes, breaks the rules or is silent, or when this transport closes.
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            async with asyncio.timeout(_TIMEOUT_S):
                peer, port = await self._shake_hands(reader, writer)
            if port:
                self._dialable[peer] = (writer.get_extra_info("peername")[0], port)
            host = writer.get_extra_info("peername")[0]
            await self._inbound.accept(peer, reader, writer, f"/ip4/{host}/tcp/{port}")
        writer.transport.abort()
        self._serving.discard(task)

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[PeerId, int]:
        """Prove our key to the other side and check its proof. Returns its peer id and the port it listens on."""
        ours = _HELLO.pack(self._identity.public_key, os.urandom(32), self._port)
        writer.write(ours)
        theirs = await reader.readexactly(_HELLO.size)
        key, _, port = _HELLO.unpack(theirs)
        writer.write(self._identity.sign_raw(_DOMAIN + ours + theirs))
        signature = await reader.readexactly(SIGNATURE_BYTES)
        if key == self._identity.public_key or not verify_raw(key, _DOMAIN + theirs + ours, signature):
            raise EOFError("the other side did not prove its key")
        return peer_id_of(key), port


async def start_tcp(config: TransportConfig) -> TcpTransport:
    """The `TransportFactory` that `pyproject.toml` declares."""
    transport = TcpTransport(config)
    try:
        for address in config.listen[:1]:
            await transport.listen(address)
        await dial_bootstrap(transport, config.bootstrap)
    except BaseException:
        await transport.close()
        raise
    return transport


def _host_and_port(address: str) -> tuple[str, int]:
    parts = address.split("/")
    if len(parts) != 5 or parts[1] != "ip4" or parts[3] != "tcp" or not parts[4].isdigit():
        raise ConfigError(f"{address[:100]!r} is not a TCP address", remedy="Write it as /ip4/0.0.0.0/tcp/4001.")
    return parts[2], int(parts[4])
