"""TCP connections that two peers open at the same time, and their splices into the network daemon.

Routers let a connection in that their own side has opened too (RFC 9293, simultaneous open). Both sides have to keep
their sockets: a router that tracks connections (Linux, so most homes) remembers the sequence number of the first SYN,
and lets an answer of the *listening* socket, which has another number, out untranslated. So a peer that dials briefly
"to open its router" and then waits to be dialed is never reached. Measured with the kernel's NAT: 0 of 3 pairs that
way, 3 of 3 with both sockets kept.

The daemon cannot be told which side of such a connection speaks first, and both ends believe that they have dialed. So
this process keeps the socket and carries its bytes to and from the daemon over loopback: on one side the daemon dials,
on the other it is dialed. A home's line is a hundred times slower than that.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from p2prl.errors import TransportError
from p2prl.net.transports.interface_addresses import own_hosts

Endpoint = tuple[str, int]
"""IP address and TCP port."""

HOLD_S = 8.0
"""How long a socket is kept: SYNs after 0, 1, 3 and 7 s, whatever the invitations' difference in delay."""

_AGAIN_S = 0.2
"""After a refusal: a router that answers strangers' SYNs with a reset does so until its own side has dialed."""

_LOCAL_S = 3.0
"""Longest wait for the daemon on loopback."""

_KEEP_ALIVE_S = 15
"""Between probes of an idle connection, as Go's default: routers forget idle ones."""

_SEGMENT_BYTES = 1_220
"""Longest part of a packet that these connections carry, in both directions (it is announced to the other side): what a
line of 1,280 bytes, the least that IPv6 permits, takes. Some tunnels drop longer packets and say so to nobody, so that
no handshake completes; the shorter ones cost 3 % more headers."""

_PART_BYTES = 64 * 1024
_WILDCARDS = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104 - bound to dial from, not to listen


def shared_socket(family: socket.AddressFamily, port: int) -> socket.socket:
    """A socket of short packets, bound to a port that another one of this user listens on. Raises `OSError`."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT, socket.SO_KEEPALIVE):
            made.setsockopt(socket.SOL_SOCKET, option, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # a system that forbids it keeps its own
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
        if hasattr(socket, "TCP_KEEPIDLE"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_ALIVE_S)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((_WILDCARDS[family], port))
    except BaseException:
        made.close()
        raise
    return made


def own_endpoint(addresses: Iterable[str], version: str) -> Endpoint:
    """Where this machine finds its own daemon, from the multiaddrs that the daemon names: one of `ip4` or `ip6` on an
    interface. Raises `TransportError` when it listens on none."""
    own = own_hosts()
    for address in addresses:
        parts = address.split("/")
        if parts[1] == version and parts[3] == "tcp" and parts[2] in own and "p2p-circuit" not in parts:
            return parts[2], int(parts[4])
    raise TransportError(f"this node does not listen on {version}")


async def open_simultaneously(
    target: Endpoint, make_socket: Callable[[], socket.socket], *, hold_s: float = HOLD_S
) -> socket.socket:
    """Dial `target`, which dials us at about the same time, until a connection stands. Raises `TransportError` after
    `hold_s`. `make_socket` makes non-blocking sockets that are bound to the port the target dials."""
    loop = asyncio.get_running_loop()
    until = loop.time() + hold_s
    while True:
        reason = "no answer"
        with contextlib.ExitStack() as undo:
            try:
                connection = undo.enter_context(make_socket())
                async with asyncio.timeout_at(until):
                    await loop.sock_connect(connection, target)
            except OSError as error:  # TimeoutError is one
                reason = error.strerror or reason
            else:
                undo.pop_all()
                return connection
        if loop.time() + _AGAIN_S >= until:
            raise TransportError(f"no meeting with {target[0]} port {target[1]}: {reason}")
        await asyncio.sleep(_AGAIN_S)


async def dial_in_short_packets(where: str, own: Iterable[str]) -> socket.socket:
    """A connection to the TCP port that a multiaddr names, in packets that fit any line. Raises `TransportError`.

    It comes from the port that this peer listens on, by its `own` multiaddrs: others then see where it can be met.
    """
    parts, loop = where.split("/"), asyncio.get_running_loop()
    try:
        async with asyncio.timeout(HOLD_S):
            found = await loop.getaddrinfo(parts[2], int(parts[4]), type=socket.SOCK_STREAM)
            family, place = found[0][0], found[0][4]
            with contextlib.suppress(OSError, TransportError):
                daemon = own_endpoint(own, "ip6" if family == socket.AF_INET6 else "ip4")
                return await _connected(shared_socket(family, daemon[1]), place)
            return await _connected(shared_socket(family, 0), place)
    except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
        raise TransportError(f"{where} accepts no connection") from error


async def _connected(made: socket.socket, place: Any) -> socket.socket:
    """A socket once it is connected to the address `place`; closed where that fails."""
    with contextlib.ExitStack() as undo:
        undo.enter_context(made)
        await asyncio.get_running_loop().sock_connect(made, place)
        undo.pop_all()
    return made


class Splices:
    """Connections of this process that the daemon uses as its own."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        """The multiaddr of each remote, by the loopback multiaddr that the daemon sees in its place."""
        self._tasks: set[asyncio.Task[None]] = set()

    def address_of(self, seen: str) -> str:
        """The multiaddr that a connection comes from which the daemon sees at `seen`."""
        return self._addresses.get(seen, seen)

    def carries(self, seen: str) -> bool:
        """Whether the daemon sees one of these connections at the loopback multiaddr `seen`."""
        return seen in self._addresses

    def offer(self, connection: socket.socket, address: str) -> str:
        """Let the daemon dial a connection to `address`: returns the multiaddr at which it finds it, once."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=1)
        listener.setblocking(False)
        seen = _multiaddr(listener.getsockname())
        self._spawn(self._accept(listener, connection, seen, address))
        return seen

    async def deliver(self, connection: socket.socket, address: str, daemon: Endpoint) -> None:
        """Connect a connection from `address` to the daemon, which listens at `daemon`. Raises `TransportError`."""
        local = socket.socket(connection.family, socket.SOCK_STREAM)
        local.setblocking(False)
        try:
            async with asyncio.timeout(_LOCAL_S):
                await asyncio.get_running_loop().sock_connect(local, daemon)
        except OSError as error:
            local.close()
            connection.close()
            raise TransportError(f"the network daemon does not listen at {daemon[0]} port {daemon[1]}") from error
        self._spawn(self._carry(connection, local, _multiaddr(local.getsockname()), address))

    def close(self) -> None:
        """End all of them."""
        for task in self._tasks:
            task.cancel()

    async def _accept(self, listener: socket.socket, connection: socket.socket, seen: str, address: str) -> None:
        with listener, connection:
            try:
                async with asyncio.timeout(_LOCAL_S):
                    local, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError:
                return
            listener.close()
            await self._carry(connection, local, seen, address)

    async def _carry(self, connection: socket.socket, local: socket.socket, seen: str, address: str) -> None:
        """Carry bytes both ways until either side ends: libp2p closes no connection by half."""
        self._addresses[seen] = address
        with connection, local:
            local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ways = [asyncio.create_task(_copy(*way)) for way in ((connection, local), (local, connection))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                self._addresses.pop(seen, None)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _copy(source: socket.socket, target: socket.socket) -> None:
    """Until the source ends, or either breaks."""
    loop = asyncio.get_running_loop()
    buffer = bytearray(_PART_BYTES)
    with contextlib.suppress(OSError):
        while size := await loop.sock_recv_into(source, buffer):
            await loop.sock_sendall(target, memoryview(buffer)[:size])


def _multiaddr(name: tuple[str, int] | tuple[str, int, int, int]) -> str:
    return f"/ip{6 if ':' in name[0] else 4}/{name[0]}/tcp/{name[1]}"
