"""Dials of an address that failed before: the daemon, which refuses longer after each failure, is asked in time."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from p2prl.errors import TransportError
from p2prl.net.transports.hivemind.daemon import Daemon
from p2prl.net.transports.hivemind.directory import Directory
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol.identity import PeerId
from p2prl.sim.machines import identity_of

OTHER = identity_of("other").peer_id


class CountingDaemon:
    """A daemon that reaches nobody until told to."""

    def __init__(self) -> None:
        self.peer_id = identity_of("own").peer_id
        self.asked = 0
        self.reaches = False

    async def connect(self, peer: PeerId, where: tuple[bytes, ...], *, timeout_s: int = 60) -> None:
        self.asked += 1
        if not self.reaches:
            raise TransportError("refused")

    async def open_stream(self, peer: PeerId, protocol: str) -> None:
        raise TransportError(f"{peer} speaks no {protocol}")


class EmptyDirectory:
    async def introduce(self, peer: PeerId) -> None:
        pass


def test_a_daemon_is_not_asked_again_before_somebody_listens() -> None:
    async def story() -> None:
        daemon = CountingDaemon()
        transport = HivemindTransport(cast(Daemon, daemon), cast(Directory, EmptyDirectory()), pacer=None)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{OTHER}"
        server.close()
        await server.wait_closed()
        for _ in range(3):
            with pytest.raises(TransportError):
                await transport.connect(address)
        assert daemon.asked == 1, "the first failure is the daemon's"
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
        daemon.reaches = True
        assert await transport.connect(address) == OTHER
        server.close()
        await transport.connect(address)
        assert daemon.asked == 3, "after a success it is asked at once"

    asyncio.run(story())


def test_an_address_that_cannot_be_tried_is_always_left_to_the_daemon() -> None:
    async def story() -> None:
        daemon = CountingDaemon()
        transport = HivemindTransport(cast(Daemon, daemon), cast(Directory, EmptyDirectory()), pacer=None)
        relay = identity_of("relay").peer_id
        for _ in range(2):
            with pytest.raises(TransportError):
                await transport.connect(f"/ip4/127.0.0.1/tcp/1/p2p/{relay}/p2p-circuit/p2p/{OTHER}")
        assert daemon.asked == 2

    asyncio.run(story())
