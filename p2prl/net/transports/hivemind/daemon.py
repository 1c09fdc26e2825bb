"""The go-libp2p daemon as a child process, and the calls we make on its control socket.

We do not use hivemind's own `P2P.create`: it leaves its sockets readable in /tmp, leaks a file descriptor for every
failed dial, raises the same error for every cause and lets Ctrl-C kill the daemon before its owner has sent its last
messages. hivemind's `P2P` still joins this daemon (`P2P.replicate`) for the directory's calls.

No orphans: the daemon ends by itself two seconds after the last persistent connection of its clients closes, and five
seconds after its start if none ever opened. That covers SIGKILL of this process on Linux and macOS alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from p2prl.errors import TransportError
from p2prl.net.transports import multiaddrs
from p2prl.net.transports.hivemind import light_import
from p2prl.net.transports.hivemind.daemon_config import (
    DaemonConfig,
    PortTakenError,
    binary_error,
    daemon_arguments,
    daemon_binary,
    startup_error,
)
from p2prl.net.transports.hivemind.daemon_folder import DaemonFolder
from p2prl.protocol.identity import Identity, PeerId

logger = logging.getLogger(__name__)

StreamCallback = Callable[[PeerId, asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]
"""Takes the peer, both ends of the stream, and the multiaddr that the connection comes from (empty: unknown)."""

_STARTUP_TIMEOUT_S = 20.0

_PORT_PATIENCE_S = 8.0
"""How long to wait for a port in use: a killed predecessor leaves a daemon that takes seconds to exit."""
_PORT_RETRY_S = 0.5
_STOP_TIMEOUT_S = 3.0
_STREAM_BUFFER_BYTES = 512 * 1024
_MAX_REASON_CHARS = 300

_STREAMS_AT_ONCE = 4_096
"""Streams of peers that may wait to be accepted, for a swarm that greets a node which was busy for a moment: the daemon
cannot hand over a stream to a full queue. Asyncio's default is 100; the kernel has a limit of its own."""


class Daemon:
    """A running p2pd. Build it with `start`, end it with `close`."""

    def __init__(self, process: asyncio.subprocess.Process, folder: DaemonFolder, peer_id: PeerId) -> None:
        self.peer_id = peer_id
        self._folder = folder
        self._process = process
        self._pb = light_import.load().p2pd_pb2
        self._log_task: asyncio.Task[None] | None = None
        self._servers: list[asyncio.Server] = []
        self._accepted: set[asyncio.StreamWriter] = set()

    @classmethod
    async def start(cls, identity: Identity, config: DaemonConfig) -> Daemon:
        """Start the daemon and wait until it listens. Raises `MachineError` or `ConfigError` with a remedy."""
        until = asyncio.get_running_loop().time() + _PORT_PATIENCE_S
        while True:
            folder = DaemonFolder()
            try:
                return await cls._launch(identity, config, folder)
            except BaseException as error:
                folder.remove()
                if not isinstance(error, PortTakenError):
                    raise
                if asyncio.get_running_loop().time() >= until:
                    raise error.as_machine_error() from error
                await asyncio.sleep(_PORT_RETRY_S)

    @classmethod
    async def _launch(cls, identity: Identity, config: DaemonConfig, folder: DaemonFolder) -> Daemon:
        key_file = folder.path / "identity"
        key_file.touch(mode=0o600)
        # protobuf PrivateKey{type=Ed25519 (08 01), data=seed ‖ public key (12 40 …)}, libp2p peer-id specification
        key_file.write_bytes(bytes((0x08, 0x01, 0x12, 0x40)) + identity.secret_seed + identity.public_key)
        binary = config.binary or daemon_binary()
        arguments = daemon_arguments(config, control_path=_control_path(folder), key_file=key_file)
        environment = os.environ | {"GOLOG_LOG_FMT": "json"}
        environment.setdefault("GOLOG_LOG_LEVEL", "error")
        try:
            process = await asyncio.create_subprocess_exec(
                binary,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # a Ctrl-C in the terminal must reach us first
            )
        except OSError as error:
            raise binary_error(binary, error.strerror or str(error)) from error
        daemon = cls(process, folder, identity.peer_id)
        try:
            async with asyncio.timeout(_STARTUP_TIMEOUT_S):
                await daemon._wait_until_listening(config)
        except TimeoutError as error:
            await daemon.close()
            raise TransportError(  # a service starts again after it: the machine is busy, or just awake
                f"the network daemon {binary} did not start within {_STARTUP_TIMEOUT_S:g} s",
                remedy="Try again when the machine is less busy.",
            ) from error
        except BaseException:
            await daemon.close()
            raise
        key_file.unlink()
        daemon._log_task = asyncio.create_task(daemon._log_output())
        return daemon

    @property
    def folder(self) -> Path:
        """The private folder of the daemon's sockets."""
        return self._folder.path

    @property
    def control_path(self) -> Path:
        """The daemon's control socket."""
        return _control_path(self._folder)

    @property
    def pid(self) -> int:
        """Process id of the daemon."""
        return self._process.pid

    async def wait_stopped(self) -> None:
        """Return when the daemon's process has ended, for any reason."""
        await self._process.wait()

    async def identify(self) -> tuple[str, ...]:
        """The multiaddrs others may dial, each ending in this peer's id."""
        reply = await self._ask(self._pb.Request(type=self._pb.Request.IDENTIFY))
        texts = [multiaddrs.from_bytes(bytes(raw)) for raw in reply.identify.addrs]
        return tuple(f"{text}/p2p/{self.peer_id}" for text in texts if text)

    async def connect(self, peer: PeerId, where: tuple[bytes, ...], *, timeout_s: int = 60) -> None:
        """Dial a peer at binary multiaddrs without `/p2p/<id>`. Raises `TransportError`."""
        request = self._pb.ConnectRequest(peer=multiaddrs.multihash_of(peer), addrs=where, timeout=timeout_s)
        await self._ask(self._pb.Request(type=self._pb.Request.CONNECT, connect=request))

    async def remotes(self, peer: PeerId) -> tuple[str, ...]:
        """The multiaddrs of the other ends of all connections with a peer. Raises `TransportError`."""
        reply = await self._ask(self._pb.Request(type=self._pb.Request.LIST_PEERS))
        wanted = multiaddrs.multihash_of(peer)
        raw = (bytes(address) for each in reply.peers if bytes(each.id) == wanted for address in each.addrs)
        return tuple(filter(None, map(multiaddrs.from_bytes, raw)))

    async def disconnect(self, peer: PeerId) -> None:
        """End every connection to a peer, circuits too. Raises `TransportError`."""
        request = self._pb.DisconnectRequest(peer=multiaddrs.multihash_of(peer))
        await self._ask(self._pb.Request(type=self._pb.Request.DISCONNECT, disconnect=request))

    async def open_stream(self, peer: PeerId, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a stream to a peer; the daemon dials it when it knows or finds an address. Raises `TransportError`."""
        request = self._pb.StreamOpenRequest(peer=multiaddrs.multihash_of(peer), proto=[protocol])
        reader, writer = await self._open()
        try:
            await self._exchange(
                reader, writer, self._pb.Request(type=self._pb.Request.STREAM_OPEN, streamOpen=request)
            )
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer

    async def handle_streams(self, protocol: str, callback: StreamCallback) -> None:
        """Call `callback` in a new task for every stream a peer opens to us on `protocol`, also where the daemon has an
        answer of its own."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                info = self._pb.StreamInfo()
                info.ParseFromString(await read_message(reader))
                peer = multiaddrs.peer_of_multihash(bytes(info.peer))
                if peer is not None:
                    await callback(peer, reader, writer, multiaddrs.from_bytes(bytes(info.addr)) or "")
            except (OSError, EOFError, asyncio.CancelledError) as error:
                # Cancelled only when the transport closes; asyncio's server would log it as an unhandled error.
                logger.debug("stream ended: %r", error)
            finally:
                self._accepted.discard(writer)
                writer.transport.abort()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Awaitable[None]:
            self._accepted.add(writer)  # before its task runs: one that is cancelled before never will
            return serve(reader, writer)

        path = self.folder / f"streams-{len(self._servers)}.sock"
        self._servers.append(
            await asyncio.start_unix_server(accept, path, limit=_STREAM_BUFFER_BYTES, backlog=_STREAMS_AT_ONCE)
        )
        where = b"\x90\x03" + bytes((len(os.fsencode(path)),)) + os.fsencode(path)  # multiaddr /unix (400)
        request = self._pb.StreamHandlerRequest(addr=where, proto=[protocol], balanced=False)
        await self._ask(self._pb.Request(type=self._pb.Request.STREAM_HANDLER, streamHandler=request))

    async def close(self) -> None:
        """End the daemon, by force after three seconds, and remove its folder."""
        for server in self._servers:
            server.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        for writer in self._accepted:
            writer.transport.abort()
        if self._log_task is not None:
            await self._log_task
        self._folder.remove()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_unix_connection(self.control_path, limit=_STREAM_BUFFER_BYTES)
        except OSError as error:
            raise TransportError("the network daemon is not running", remedy="Start the program again.") from error

    async def _ask(self, request: Any) -> Any:
        reader, writer = await self._open()
        try:
            return await self._exchange(reader, writer, request)
        finally:
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Any) -> Any:
        try:
            writer.write(sized_message(request.SerializeToString()))
            await writer.drain()
            reply = self._pb.Response()
            reply.ParseFromString(await read_message(reader))
        except (OSError, EOFError) as error:
            raise TransportError("the network daemon stopped answering") from error
        if reply.type == self._pb.Response.ERROR:
            raise TransportError(_short(reply.error.msg))
        return reply

    async def _wait_until_listening(self, config: DaemonConfig) -> None:
        assert self._process.stdout is not None
        last = ""
        async for line in self._process.stdout:
            text = line.decode("utf-8", "replace").strip()
            logger.debug("p2pd: %s", text)
            if text.startswith("Peer ID:"):
                return
            last = text or last
        raise startup_error(last, config)

    async def _log_output(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            logger.debug("p2pd: %s", line.decode("utf-8", "replace").strip())


def _control_path(folder: DaemonFolder) -> Path:
    return folder.path / "control.sock"


def _short(message: str) -> str:
    """The daemon's error in one short line: go-libp2p lists every address it tried."""
    line = " ".join(message.split())
    return line if len(line) <= _MAX_REASON_CHARS else line[: _MAX_REASON_CHARS - 3] + "..."


def sized_message(payload: bytes) -> bytes:
    """A message of the daemon's sockets: the payload behind its length, a varint."""
    size, prefix = len(payload), bytearray()
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + payload


async def read_message(reader: asyncio.StreamReader, *, limit_bytes: int = 1 << 28) -> bytes:
    """The payload of the next message behind its length. Raises `EOFError` for a length that is malformed or above the
    limit."""
    size = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        size |= (byte & 0x7F) << shift
        if byte < 0x80 and size <= limit_bytes:
            return await reader.readexactly(size)
        shift += 7
        if shift > 28 or byte < 0x80:
            raise EOFError("the daemon sent a malformed length")
