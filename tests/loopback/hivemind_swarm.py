"""Several hivemind transports on 127.0.0.1, for the transport's loopback tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from p2prl.clock import SystemClock
from p2prl.net.transports.hivemind.daemon_config import DaemonConfig
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol.identity import Identity, PeerId

LOCAL = ("/ip4/127.0.0.1/tcp/0",)
DAEMON_CONFIG = DaemonConfig(nat_port_map=False, auto_nat=False)
KEY = b"directory of a run"


class OffsetClock(SystemClock):
    """The machine's clock, wrong by a number of seconds that a test sets."""

    offset_s = 0.0

    def now(self) -> float:
        return super().now() + self.offset_s


class Inbox:
    """Frames as they arrive, with their senders."""

    def __init__(self, transport: HivemindTransport) -> None:
        self._queue: asyncio.Queue[tuple[PeerId, bytes]] = asyncio.Queue()
        transport.set_receiver(lambda peer, frame: self._queue.put_nowait((peer, frame)))

    async def next(self) -> tuple[PeerId, bytes]:
        return await self._queue.get()


def fresh() -> Identity:
    return Identity.generate(os.urandom(16))


async def start(*bootstrap: str, **more: Any) -> HivemindTransport:
    return await HivemindTransport.start(
        fresh(), listen=LOCAL, bootstrap=bootstrap, daemon_config=DAEMON_CONFIG, **more
    )


@contextlib.asynccontextmanager
async def swarm(size: int) -> AsyncIterator[list[HivemindTransport]]:
    peers: list[HivemindTransport] = []
    try:
        for _ in range(size):
            peers.append(await start(*(peers[0].addresses[:1] if peers else ())))
        yield peers
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))


def run(scenario: Callable[[], Awaitable[None]], limit_s: float = 60) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await scenario()

    asyncio.run(bounded())
