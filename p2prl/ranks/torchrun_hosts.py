"""Ranks on several hosts, which torchrun started: they meet at its store, and rank 0 sends commands over a connection.

For a private network alone. torchrun's store listens on every interface and asks nobody who he is, and what the ranks
send each other is neither signed nor encrypted. A connection for commands is only told from a stranger's: its token is
in that store.
"""

from __future__ import annotations

import hmac
import os
import secrets
import signal
import socket
import time
from contextlib import ExitStack, suppress
from typing import IO

import msgspec
import psutil
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from p2prl.errors import MachineError, P2PRLError, ProcessLostError
from p2prl.exit_codes import TEMPORARY
from p2prl.ranks import commands
from p2prl.ranks.follower import follow
from p2prl.ranks.process_group import MEETING_S, RankGroup

_KEY = "p2prl/commands"
_TOKEN_BYTES = 32
_GREETING_BYTES = _TOKEN_BYTES + 4
_GREETING_S = 10.0
_REASON_BYTES = 500

_END_S = 5.0
"""Time for the reason of a failed rank to arrive."""

_SILENCE_S = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 5}
"""A host that lost its power or its line closes no connection: one that answers nothing for eight seconds is gone."""


class _Call(msgspec.Struct, frozen=True):
    """Where rank 0 sends commands from."""

    address: str
    port: int
    token: bytes


class HostRanks:
    """All ranks of a learner over several hosts, seen from rank 0."""

    def __init__(self, ranks: int) -> None:
        """Wait until all have met. `ProcessLostError` when one does not come."""
        store, _, _ = next(rendezvous("env://"))
        address = _own_address()
        self._end: str | None = None
        self._connections: list[socket.socket] = []
        self._pipes: list[IO[bytes]] = []
        with ExitStack() as unfinished:
            unfinished.callback(self.close)
            self._connect(store, address, ranks)
            self.group = RankGroup(store, interface=_interface_of(address), rank=0, ranks=ranks)
            """Rank 0 among them."""
            unfinished.pop_all()

    def _connect(self, store: Store, address: str, ranks: int) -> None:
        """Accept a connection of every other rank, in their order."""
        found: dict[int, socket.socket] = {}
        until, token = time.monotonic() + MEETING_S, secrets.token_bytes(_TOKEN_BYTES)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family) as listener:
            listener.settimeout(1.0)
            store.set(_KEY, msgspec.json.encode(_Call(address, listener.getsockname()[1], token)).decode())
            while len(found) < ranks - 1:
                if time.monotonic() > until:
                    raise ProcessLostError(
                        f"{ranks - 1 - len(found)} ranks of the learner did not come within {MEETING_S:.0f} s",
                        remedy="Start torchrun on every host, with the same --nnodes and --master-addr.",
                    )
                with suppress(TimeoutError):
                    accepted, _ = listener.accept()
                    if (number := _greeted(accepted, token)) and number < ranks and number not in found:
                        found[number] = accepted
                    else:
                        accepted.close()
        self._connections = [found[number] for number in sorted(found)]
        self._pipes = [connection.makefile("wb") for connection in self._connections]

    def send(self, command: commands.Command) -> None:
        """Send a command to all other ranks. `ProcessLostError` when one is gone."""
        for pipe in self._pipes:
            try:
                commands.send(pipe, command)
            except OSError:
                self.lost()
                raise

    def check(self) -> None:
        """`ProcessLostError` if a rank has ended."""
        for number, connection in enumerate(self._connections, start=1):
            if self._end is None and (reason := _last_words(connection)) is not None:
                self._end = f"{number} of the learner {f'failed: {reason}' if reason else 'is gone'}"
        if self._end is not None:
            raise ProcessLostError(f"rank {self._end}", remedy="Start again: the run resumes before this update.")

    def lost(self, wait_s: float = _END_S) -> None:
        """A collective or a connection has failed: wait a moment for the rank that ended, and raise
        `ProcessLostError`."""
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            self.check()
            time.sleep(0.05)

    def close(self) -> None:
        """End the other ranks."""
        for pipe, connection in zip(self._pipes, self._connections, strict=True):
            with suppress(OSError):
                pipe.close()
            connection.close()


def follow_host(*, rank: int, ranks: int) -> int:
    """Be another rank than 0 until its learner ends; returns an exit code."""
    # torchrun sends SIGTERM to all ranks, and rank 0 then finishes its update with them.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    store, _, _ = next(rendezvous("env://"))
    call = msgspec.json.decode(store.get(_KEY), type=_Call)
    with socket.create_connection((call.address, call.port), timeout=_GREETING_S) as connection:
        own: str = connection.getsockname()[0]
        connection.sendall(call.token + rank.to_bytes(_GREETING_BYTES - _TOKEN_BYTES, "little"))
        _watch(connection)
        try:
            group = RankGroup(store, interface=_interface_of(own), rank=rank, ranks=ranks)
            follow(connection.makefile("rb"), group)
        except (RuntimeError, MemoryError, OSError, P2PRLError) as error:
            with suppress(OSError):
                connection.sendall(" ".join(str(error).split()).encode()[:_REASON_BYTES])
            return TEMPORARY
    return 0


def _greeted(connection: socket.socket, token: bytes) -> int | None:
    """The number of a rank that knows the token."""
    connection.settimeout(_GREETING_S)
    greeting = b""
    with suppress(OSError):
        while len(greeting) < _GREETING_BYTES and (more := connection.recv(_GREETING_BYTES - len(greeting))):
            greeting += more
    if len(greeting) < _GREETING_BYTES or not hmac.compare_digest(greeting[:_TOKEN_BYTES], token):
        return None
    _watch(connection)
    return int.from_bytes(greeting[_TOKEN_BYTES:], "little")


def _watch(connection: socket.socket) -> None:
    """Wait for the other end as long as its host is there."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _SILENCE_S.items():
        if hasattr(socket, name):  # macOS lacks one of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _last_words(connection: socket.socket) -> str | None:
    """Why the rank at the other end has ended, empty if it did not say; None while it runs."""
    try:
        said = connection.recv(_REASON_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return ""
    return said.decode(errors="replace")


def _own_address() -> str:
    """The address of this host towards torchrun's store, at which the others find it too."""
    family, kind, _, _, place = socket.getaddrinfo(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)  # sends nothing
        address: str = probe.getsockname()[0]
        return address


def _interface_of(address: str) -> str:
    """The network interface that has an address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    raise MachineError(f"no network interface has the address {address}", remedy="Check --master-addr.")
