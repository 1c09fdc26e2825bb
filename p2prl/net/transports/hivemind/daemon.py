"""The go-libp2p daemon as a child process, and the calls we make on its control socket.

Why not hivemind's own `P2P.create`: it leaves its sockets readable in /tmp, leaks a file descriptor for every failed
dial, gives one error for every cause and lets Ctrl-C kill the daemon before its owner could say goodbye. hivemind's
`P2P` still joins this daemon (`P2P.replicate`) for the directory's calls.

No orphans: the daemon ends by itself two seconds after the last persistent connection of its clients closes, and five
seconds after its start if none ever opened. That covers SIGKILL of this process on Linux and macOS alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from p2prl.errors import ConfigError, MachineError, TransportError
from p2prl.net.transports import multiaddrs
from p2prl.net.transports.hivemind import light_import
from p2prl.protocol.identity import Identity, PeerId

logger = logging.getLogger(__name__)

StreamCallback = Callable[[PeerId, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

DAEMON_VARIABLE = "P2PRL_P2PD"
"""Environment variable with the path of another p2pd, for instance a newer build of hivemind's fork."""

_FOLDERS = Path("/tmp")  # noqa: S108 - private folders; not TMPDIR, macOS's makes socket paths pass 104 bytes
_PREFIX = "p2prl-"
_STARTUP_TIMEOUT_S = 20.0

_PORT_PATIENCE_S = 8.0
"""How long a port may stay taken: a predecessor that was killed leaves a daemon that needs seconds to end."""
_PORT_RETRY_S = 0.5
_STOP_TIMEOUT_S = 3.0
_UNCLAIMED_S = 5
_STREAM_BUFFER_BYTES = 512 * 1024


@dataclass(frozen=True, kw_only=True)
class DaemonConfig:
    """How this peer meets the network below the swarm."""

    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Multiaddrs to listen on; none to only dial. TCP alone by default: the bundled daemon's QUIC (quic-go 0.40.0) has
    known holes (CVE-2023-49295, CVE-2024-22189)."""
    announce: tuple[str, ...] = ()
    """Multiaddrs to tell others instead of the ones found, for a port forwarded by hand."""
    nat_port_map: bool = True
    """Ask the home router for a port (UPnP, NAT-PMP)."""
    auto_nat: bool = True
    """Help others find out whether they can be dialled."""
    reachability: Literal["auto", "public", "private"] = "auto"
    """Skip finding out whether this peer can be dialled."""
    use_relays: bool = True
    """When unreachable, reserve a slot at relays and be dialled through them. Needs about four relay candidates. The
    bundled daemon's relays often end a circuit after 128 KiB, whatever their data limit: enough for gossip, not for
    weights."""
    relays: tuple[str, ...] = ()
    """Relay candidates, multiaddrs ending in /p2p/<id>; the bootstrap peers when empty."""
    be_relay: bool = True
    """Carry others' traffic when publicly reachable, within the daemon's own limits."""
    daemon_path: Path | None = None
    """The p2pd to run; `P2PRL_P2PD` or the one in hivemind's wheel when None."""


class _PortTakenError(MachineError):
    """The port to listen on is in use, perhaps only for seconds."""

    def as_machine_error(self) -> MachineError:
        return MachineError(str(self), remedy=self.remedy)


class Daemon:
    """A running p2pd. Build it with `start`, end it with `close`."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, peer_id: PeerId) -> None:
        self.peer_id = peer_id
        self.folder = folder
        self._process = process
        self._pb = light_import.load().p2pd_pb2
        self._log_task: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._folder_lock: IO[str] | None = None

    @classmethod
    async def start(cls, identity: Identity, config: DaemonConfig) -> Daemon:
        """Runs the daemon until it listens. Raises `MachineError` or `ConfigError` with one sentence and a remedy."""
        until = asyncio.get_running_loop().time() + _PORT_PATIENCE_S
        while True:
            folder, lock = _private_folder()
            try:
                daemon = await cls._launch(identity, config, folder)
            except BaseException as error:
                shutil.rmtree(folder, ignore_errors=True)
                lock.close()
                if not isinstance(error, _PortTakenError):
                    raise
                if asyncio.get_running_loop().time() >= until:
                    raise error.as_machine_error() from error
                await asyncio.sleep(_PORT_RETRY_S)
            else:
                daemon._folder_lock = lock
                return daemon

    @classmethod
    async def _launch(cls, identity: Identity, config: DaemonConfig, folder: Path) -> Daemon:
        key_file = folder / "identity"
        key_file.touch(mode=0o600)
        # protobuf PrivateKey{type=Ed25519 (08 01), data=seed ‖ public key (12 40 …)}, libp2p peer-id specification
        key_file.write_bytes(bytes((0x08, 0x01, 0x12, 0x40)) + identity.secret_seed + identity.public_key)
        binary = daemon_binary(config)
        arguments = _arguments(config, folder, key_file)
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
            raise _binary_error(binary, error.strerror or str(error)) from error
        daemon = cls(process, folder, identity.peer_id)
        try:
            async with asyncio.timeout(_STARTUP_TIMEOUT_S):
                await daemon._wait_until_listening(config)
        except TimeoutError as error:
            await daemon.close()
            raise MachineError(
                f"the network daemon {binary} did not start within {_STARTUP_TIMEOUT_S:.0f} s",
                remedy="Try again when the machine is less busy, or run p2prl doctor.",
            ) from error
        except BaseException:
            await daemon.close()
            raise
        key_file.unlink()
        daemon._log_task = asyncio.create_task(daemon._log_output())
        return daemon

    @property
    def control_path(self) -> Path:
        """The daemon's control socket."""
        return self.folder / "control.sock"

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_stopped(self) -> None:
        """Returns when the daemon's process has ended, wanted or not."""
        await self._process.wait()

    async def identify(self) -> tuple[str, ...]:
        """The multiaddrs others may dial, each ending in this peer's id."""
        reply = await self._ask(self._pb.Request(type=self._pb.Request.IDENTIFY))
        texts = [multiaddrs.from_bytes(bytes(raw)) for raw in reply.identify.addrs]
        return tuple(f"{text}/p2p/{self.peer_id}" for text in texts if text)

    async def connect(self, peer: PeerId, where: tuple[bytes, ...]) -> None:
        """Dials a peer at binary multiaddrs without `/p2p/<id>`. Raises `TransportError`."""
        request = self._pb.ConnectRequest(peer=multiaddrs.multihash_of(peer), addrs=where)
        await self._ask(self._pb.Request(type=self._pb.Request.CONNECT, connect=request))

    async def disconnect(self, peer: PeerId) -> None:
        """Closes every connection to a peer."""
        request = self._pb.DisconnectRequest(peer=multiaddrs.multihash_of(peer))
        await self._ask(self._pb.Request(type=self._pb.Request.DISCONNECT, disconnect=request))

    async def open_stream(self, peer: PeerId, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new stream to a peer; the daemon dials it when it knows or finds an address. Raises `TransportError`."""
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
        """Calls `callback` in a task of its own for every stream a peer opens to us on `protocol`."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                info = self._pb.StreamInfo()
                info.ParseFromString(await _read_message(reader))
                peer = multiaddrs.peer_of_multihash(bytes(info.peer))
                if peer is not None:
                    await callback(peer, reader, writer)
            except (OSError, EOFError, asyncio.CancelledError) as error:
                # Cancelled only when the transport closes; asyncio's server would log it as an unhandled error.
                logger.debug("stream ended: %r", error)
            finally:
                writer.transport.abort()

        path = self.folder / "streams.sock"
        self._server = await asyncio.start_unix_server(accept, path, limit=_STREAM_BUFFER_BYTES)
        where = b"\x90\x03" + bytes((len(os.fsencode(path)),)) + os.fsencode(path)  # multiaddr /unix (400)
        request = self._pb.StreamHandlerRequest(addr=where, proto=[protocol], balanced=False)
        await self._ask(self._pb.Request(type=self._pb.Request.STREAM_HANDLER, streamHandler=request))

    async def close(self) -> None:
        """Ends the daemon, by force after three seconds, and removes its folder."""
        if self._server is not None:
            self._server.close()
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
        if self._log_task is not None:
            await self._log_task
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._folder_lock is not None:
            self._folder_lock.close()

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
            writer.write(_message(request.SerializeToString()))
            await writer.drain()
            reply = self._pb.Response()
            reply.ParseFromString(await _read_message(reader))
        except (OSError, EOFError) as error:
            raise TransportError("the network daemon stopped answering") from error
        if reply.type == self._pb.Response.ERROR:
            raise TransportError(_reason(reply.error.msg))
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
        raise _startup_error(last, config)

    async def _log_output(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            logger.debug("p2pd: %s", line.decode("utf-8", "replace").strip())


def daemon_binary(config: DaemonConfig) -> Path:
    """The p2pd to run: the configured one, the environment's, or the wheel's."""
    if config.daemon_path is not None:
        return config.daemon_path
    return Path(os.environ.get(DAEMON_VARIABLE) or light_import.load().daemon_path)


def _private_folder() -> tuple[Path, IO[str]]:
    """A folder for a daemon's sockets, and the lock that says somebody lives in it.

    SIGKILL leaves a folder behind, so whoever makes one removes those of the dead. A lock appears under its name only
    once it is held: a folder without one is being made just now and is left alone.
    """
    for old in _FOLDERS.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (old / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)
    # mkdtemp makes the folder 0700, which is what keeps other users of the machine off the sockets and the key.
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_FOLDERS))
    own = (folder / "lock.new").open("w")
    fcntl.flock(own, fcntl.LOCK_EX)
    (folder / "lock.new").rename(folder / "lock")
    return folder, own


def _arguments(config: DaemonConfig, folder: Path, key_file: Path) -> list[str]:
    arguments = [
        f"-listen=/unix{folder / 'control.sock'}",
        f"-id={key_file}",
        f"-idleTimeout={_UNCLAIMED_S}s",
        "-dhtServer=1",  # libp2p's own routing: finds the addresses of peers that the directory knows by id alone
        "-tls=1",
        "-noise=1",
        "-connManager=1",
        "-relay=1",
        f"-relayService={int(config.be_relay)}",
        f"-autoRelay={int(config.use_relays and bool(config.relays))}",
        f"-autonat={int(config.auto_nat)}",
        f"-natPortMap={int(config.nat_port_map)}",
    ]
    for flag, values in (
        ("hostAddrs", config.listen),
        ("announceAddrs", config.announce),
        ("trustedRelays", config.relays if config.use_relays else ()),
    ):
        for value in values:
            multiaddrs.to_bytes(value)
        if values:
            arguments.append(f"-{flag}={','.join(values)}")
    if not config.listen:
        arguments.append("-noListenAddrs=1")
    if config.reachability != "auto":
        arguments.append(f"-forceReachability{config.reachability.capitalize()}=1")
    return arguments


def _binary_error(binary: Path, why: str) -> MachineError:
    if os.environ.get(DAEMON_VARIABLE) == str(binary):
        remedy = f"{DAEMON_VARIABLE} names it: point it at a p2pd for this machine, or unset it."
    else:
        remedy = f"Install it again: pip install --force-reinstall --no-deps hivemind=={light_import.VERSION}"
    return MachineError(f"the network daemon {binary} cannot run: {why}", remedy=remedy)


def _startup_error(last_line: str, config: DaemonConfig) -> MachineError | ConfigError:
    reason = last_line.split(" ", 2)[-1] if last_line[:2] == "20" else last_line  # the line starts with date and time
    listen = ", ".join(config.listen)
    if "address already in use" in reason:
        return _PortTakenError(
            f"another program already uses the port of {listen}",
            remedy="Close it, or listen on another port (0 takes any free one).",
        )
    if "cannot assign requested address" in reason or "can't assign requested address" in reason:
        return MachineError(
            f"{listen} is not an address of this machine", remedy="Listen on 0.0.0.0, and announce the public address."
        )
    if "permission denied" in reason and "listen" in reason:
        return MachineError(f"this user may not listen on {listen}", remedy="Choose a port above 1023.")
    return MachineError(
        f"the network daemon did not start: {reason or 'it ended without a word'}", remedy="Run p2prl doctor."
    )


def _reason(message: str) -> str:
    """The daemon's error in one short line: go-libp2p lists every address it tried."""
    line = " ".join(message.split())
    return line if len(line) <= 300 else line[:297] + "..."


def _message(payload: bytes) -> bytes:
    size, prefix = len(payload), bytearray()
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + payload


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    size = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return await reader.readexactly(size)
        shift += 7
        if shift > 28:
            raise EOFError("the daemon sent a malformed length")
