"""Self-test of a network daemon: three of them on loopback, frames between two, and frames over a circuit.

For people who build a newer daemon and name it with `P2PRL_P2PD`. It shows that the daemon takes the product's command
line and carries its frames; behavior behind home routers needs routers (`lab/p2prl_lab/nat_lab.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from p2prl.errors import P2PRLError, TransportError
from p2prl.net.listen_addresses import LOOPBACK_LISTEN
from p2prl.net.transports.hivemind.daemon_config import DaemonConfig
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol import limits
from p2prl.protocol.identity import Identity, PeerId

_CIRCUIT_S = 40.0
"""A daemon that knows its reachability reserves a slot within seconds; go-libp2p tries again after half a minute."""

_POLL_S = 0.25
_SEND_S = 30.0
_FRAMES = 8

_SMALL_CIRCUIT_BYTES = 128 * 1024
"""What go-libp2p's default relay lets through a circuit; a public peer's must let more."""


@dataclass(frozen=True, slots=True)
class SelfTestStep:
    """One thing that a daemon has to do."""

    name: str
    passed: bool
    text: str
    """What it did, or why it failed."""


async def self_test(binary: Path, monotonic: Callable[[], float] = time.monotonic) -> list[SelfTestStep]:
    """The steps in order, up to the first that fails; `monotonic` reads a clock in seconds."""
    steps: list[SelfTestStep] = []

    async def step(name: str, work: Awaitable[str]) -> None:
        began = monotonic()
        try:
            text = await work
        except P2PRLError as error:
            steps.append(SelfTestStep(name, False, f"{error}. {error.remedy or ''}".strip()))
            raise
        steps.append(SelfTestStep(name, True, f"{text} ({monotonic() - began:.1f} s)"))

    with contextlib.suppress(P2PRLError):
        async with contextlib.AsyncExitStack() as stack:
            peers: dict[str, HivemindTransport] = {}

            async def start() -> str:
                relay = peers["relay"] = await stack.enter_async_context(_peer(binary, is_public=True))
                where = relay.addresses[:1]
                peers["home"], peers["other"] = await asyncio.gather(
                    stack.enter_async_context(_peer(binary, relays=where)),
                    stack.enter_async_context(_peer(binary, bootstrap=where)),
                )
                return "three daemons start with the product's options"

            await step("start", start())
            await step("frames", _send_frames(peers["other"], peers["relay"], monotonic))
            await step("circuit", _cross(peers["other"], peers["home"], peers["relay"], monotonic))
    return steps


@contextlib.asynccontextmanager
async def _peer(
    binary: Path, *, is_public: bool = False, relays: tuple[str, ...] = (), bootstrap: tuple[str, ...] = ()
) -> AsyncIterator[HivemindTransport]:
    transport = await HivemindTransport.start(
        Identity.generate(os.urandom(16)),
        listen=LOOPBACK_LISTEN,
        bootstrap=relays or bootstrap,
        relays=relays,
        daemon_config=DaemonConfig(
            binary=binary, is_public=is_public, is_private=bool(relays), nat_port_map=False, auto_nat=False
        ),
    )
    try:
        yield transport
    finally:
        await transport.close()


async def _send_frames(sender: HivemindTransport, receiver: HivemindTransport, monotonic: Callable[[], float]) -> str:
    """Frames of the largest size, one behind the other."""
    frame, received = bytes(limits.MAX_FRAME_BYTES), 0

    def count(_: PeerId, data: bytes) -> None:
        nonlocal received
        received += len(data)

    receiver.set_receiver(count)
    began = monotonic()
    await asyncio.gather(*(sender.send(receiver.peer_id, frame, timeout_s=_SEND_S) for _ in range(_FRAMES)))
    if received != _FRAMES * len(frame):
        raise TransportError(f"{received} of {_FRAMES * len(frame)} bytes arrived")
    return f"{received / 1e6:.0f} MB between two of them at {received / 1e6 / (monotonic() - began):.0f} MB/s"


async def _cross(
    sender: HivemindTransport, home: HivemindTransport, relay: HivemindTransport, monotonic: Callable[[], float]
) -> str:
    """More through a circuit than a relay of go-libp2p's defaults lets pass.

    Dialed by its name: the daemon shows no circuit whose relay is on loopback.
    """
    address = f"{relay.addresses[0]}/p2p-circuit/p2p/{home.peer_id}"
    received: list[int] = []
    home.set_receiver(lambda _, data: received.append(len(data)))
    began = monotonic()
    while True:
        try:
            await sender.connect(address)
            break
        except TransportError:
            if monotonic() - began > _CIRCUIT_S:
                raise
            await asyncio.sleep(_POLL_S)
    reserved_s = monotonic() - began
    await sender.send(home.peer_id, bytes(limits.MAX_FRAME_BYTES), timeout_s=_SEND_S)
    if sum(received) <= _SMALL_CIRCUIT_BYTES:
        raise TransportError(f"{sum(received)} bytes arrived over the circuit")
    return f"a relay's slot within {reserved_s:.1f} s, and {sum(received) / 1e6:.1f} MB through it in one frame"
