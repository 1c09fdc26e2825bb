"""A role's handle on its network process: send it messages, take its messages, restart it when it dies.

Networking has a process of its own because a busy Python thread beside it would stall every peer's messages a
hundredfold (1.2 ms to 108 ms, measured). The role's process computes; this handle's one thread only moves bytes
between a socket and a queue.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from p2prl import errors
from p2prl.net.process import control
from p2prl.net.storage.patch_decoder import PatchDecoder
from p2prl.protocol.kinds import Role

log = logging.getLogger("p2prl.net")

DEFAULT_LISTEN = ("/ip4/0.0.0.0/tcp/0",)
"""Any free TCP port on every interface."""

_RESTARTS = 5
"""A network process that dies this often in one role's life will not get better by trying again."""

_MOST_WAITING_BYTES = 64 * 1024 * 1024
"""Messages kept for a network process that takes none. Spool and journal offer again what is dropped past it."""

_LAST_WORDS_S = 2.0
"""How long `close` waits for a network process to take what is left."""

_SILENT_S = 8.0
"""The network process reports every two seconds; one that has not for this long has stopped."""

_RETRY_S = 0.02
"""Longest wait for messages while some of ours have not been taken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """How a role takes part in the network."""

    key_file: Path
    """Identity of this peer."""
    run: bytes
    """Digest of the run manifest's envelope."""
    role: Role
    blob_dir: Path
    """Where weight chunks are kept; owned by the network process."""
    listen: tuple[str, ...] = DEFAULT_LISTEN
    """Multiaddrs to listen on. TCP only by default: the bundled daemon's QUIC has known flaws."""
    bootstrap: tuple[str, ...] = ()
    """Peers to start from; empty only for the first peer of a run."""
    manifest: bytes = b""
    """The run manifest's envelope, when it is on disk already."""
    fetch_policies: bool = True
    keep_versions: int = 4
    rebuilds: bool = False
    """Whether the role decodes patches (`p2prl.net.storage.patch_decoder`)."""
    disk_bytes: int = 0
    """Most bytes of weights and patches kept on disk; 0 sets no bound but `keep_versions`."""
    source_patience_s: float = 1.5
    """Seconds without progress after which the learner is asked for chunks volunteers hold too."""
    upload_bytes_s: float = 0.0
    """What chunks may use of the uplink, bytes/s; 0 measures it and uses 80 %."""
    download_bytes_s: float = 0.0
    """What the downlink carries, bytes/s; 0 when unknown."""
    monthly_bytes: int = 0
    """Bytes of chunks that may leave in a calendar month; 0 is no limit."""
    awaits_base: bool = False
    """Whether the role says first what weights it has to start from (`control.StartFrom`)."""


class NetworkHandle:
    """Owns the network process."""

    def __init__(self, config: NetworkConfig, *, on_start: Callable[[NetworkHandle], None] | None = None) -> None:
        """`on_start` runs after every (re)start and sends again what a fresh node must know."""
        self._config = config
        self._on_start = on_start
        self._restarts = 0
        self._closing = False
        self._events: queue.SimpleQueue[control.FromNetwork | None] = queue.SimpleQueue()
        self._last_status: control.Status | None = None
        self._heard_at = time.monotonic()
        self._outgoing = bytearray()
        self._sending = threading.Lock()
        self._rebuilder = PatchDecoder(self._rebuilt)
        self.addresses: tuple[str, ...] = ()
        self._start()

    @property
    def pid(self) -> int:
        """Process id of the network process."""
        return self._process.pid

    @property
    def status(self) -> control.Status | None:
        """The last status heard, if any."""
        return self._last_status

    def remember_manifest(self, raw: bytes) -> None:
        """Start with this run manifest from now on."""
        self._config = replace(self._config, manifest=raw)

    def send(self, message: control.ToNetwork) -> None:
        """Hand a message over, without ever waiting for the network process to take it.

        A dying process loses it; `on_start` tells the next one. A role never stands still because its network does.
        """
        if isinstance(message, control.StartFrom):
            self._config = replace(
                self._config, awaits_base=False
            )  # a restarted process is told nothing, and waits not
        if len(self._outgoing) > _MOST_WAITING_BYTES:
            log.warning("the network process takes no messages; one was dropped")
            return
        with self._sending:  # the thread that rebuilds weights answers by itself
            self._outgoing += control.pack(message)
        self._flush()

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """Messages that arrived, waiting up to `timeout_s` for the first. Restarts a dead network process.

        Raises the network's own error when it cannot go on (port in use, disk full, no peer reachable).
        """
        messages: list[control.FromNetwork] = []
        self._flush()
        if self._outgoing:
            timeout_s = min(timeout_s, _RETRY_S)
        try:
            message = self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
            while True:
                if message is None:
                    self._restart()
                elif isinstance(message, control.Failed):
                    self._raise(message)
                else:
                    self._note(message)
                    messages.append(message)
                message = self._events.get_nowait()
        except queue.Empty:
            return messages or self._presume_alone()

    def close(self) -> None:
        """Stop the network process and wait for it."""
        self._closing = True
        self._flush()
        if self._outgoing and select.select([], [self._socket], [], _LAST_WORDS_S)[1]:
            self._flush()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("network process was gone already")
        self._socket.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(timeout=5)
        self._rebuilder.close(timeout_s=_LAST_WORDS_S)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "p2prl.net.process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is the role's to handle; it closes this socket
            env=environment,
        )
        theirs.close()
        with self._sending:
            self._socket = ours
            self._outgoing.clear()
        self._thread = threading.Thread(target=self._read, args=(ours,), name="p2prl-network", daemon=True)
        self._thread.start()
        config = self._config
        self.send(
            control.Start(
                key_file=str(config.key_file),
                run=config.run,
                role=int(config.role),
                blob_dir=str(config.blob_dir),
                listen=config.listen,
                bootstrap=config.bootstrap,
                manifest=config.manifest,
                fetch_policies=config.fetch_policies,
                keep_versions=config.keep_versions,
                rebuilds=config.rebuilds,
                disk_bytes=config.disk_bytes,
                source_patience_s=config.source_patience_s,
                seed=int.from_bytes(os.urandom(7), "little"),
                upload_bytes_s=config.upload_bytes_s,
                download_bytes_s=config.download_bytes_s,
                monthly_bytes=config.monthly_bytes,
                awaits_base=config.awaits_base,
            )
        )
        if self._on_start is not None:
            self._on_start(self)

    def _presume_alone(self) -> list[control.FromNetwork]:
        """A stopped network process has no neighbours: a role must not wait for a learner nobody hears."""
        last = self._last_status
        if last is None or not last.peers or time.monotonic() - self._heard_at < _SILENT_S:
            return []
        self._last_status = msgspec.structs.replace(last, peers=())
        return [self._last_status]

    def _flush(self) -> None:
        with self._sending:
            try:
                while self._outgoing:
                    del self._outgoing[: self._socket.send(self._outgoing, socket.MSG_DONTWAIT)]
            except BlockingIOError:
                return  # the rest goes with the next message or poll
            except OSError:
                log.debug("network process is gone; %d bytes dropped", len(self._outgoing))
                self._outgoing.clear()

    def _rebuilt(self, answer: control.VersionRebuilt, fault: str) -> None:
        """On the rebuilder's thread."""
        if fault:
            self._events.put(control.Warned(f"patches could not be used, another way is taken: {fault}", ""))
        self.send(answer)

    def _restart(self) -> None:
        if self._closing:
            return
        code = self._process.wait()
        self._restarts += 1
        if self._restarts > _RESTARTS:
            raise errors.TransportError(
                f"the network process ended {self._restarts} times (last exit status {code})",
                remedy="Start again; if it repeats, report what was printed before this.",
            )
        log.warning("the network process ended (status %s); starting it again", code)
        self._socket.close()
        self._start()

    def _note(self, message: control.FromNetwork) -> None:
        self._heard_at = time.monotonic()
        match message:
            case control.NetworkUp(addresses=addresses):
                self.addresses = addresses
                # A restarted node must come back where others expect it.
                self._config = replace(self._config, listen=_listen_again(self._config.listen, addresses))
            case control.Status():
                self._last_status = message
            case control.RunKnown(manifest=raw):
                self.remember_manifest(raw)
            case _:
                pass

    def _raise(self, failed: control.Failed) -> None:
        kind = getattr(errors, failed.error, errors.P2PRLError)
        raise kind(failed.message, remedy=failed.remedy)

    def _read(self, source: socket.socket) -> None:
        try:
            for body in _bodies(source):
                message = control.parse_from_network(body)
                if isinstance(message, control.PatchesReady):
                    self._rebuilder.take(message)  # at once: a role may be minutes into a batch
                else:
                    self._events.put(message)
        except OSError as error:
            log.debug("reading from the network process failed: %s", error)
        self._events.put(None)  # whatever ended it, `poll` must learn that nothing more will come


def _bodies(source: socket.socket) -> Iterable[bytes]:
    with source.makefile("rb") as stream:
        while True:
            header = stream.read(control.LENGTH.size)
            if len(header) < control.LENGTH.size:
                return
            size = control.LENGTH.unpack(header)[0]
            body = stream.read(size)
            if len(body) < size:
                return  # the process died in the middle of a message
            yield body


def _listen_again(listen: tuple[str, ...], addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Replace port 0 by the port that was taken, so that a restart keeps every peer's address book right."""
    ports = [address.split("/")[4] for address in addresses if address.split("/")[3:4] == ["tcp"]]
    return tuple(a.replace("/tcp/0", f"/tcp/{ports[0]}") if ports else a for a in listen)
