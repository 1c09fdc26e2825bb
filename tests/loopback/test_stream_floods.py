"""Half frames, empty frames and dropped streams over real daemons on 127.0.0.1."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from p2prl.clock import SystemClock
from p2prl.net.process.node_driver import NodeGuard
from p2prl.net.transports import framing
from p2prl.net.transports.hivemind import light_import
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.kinds import Role
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from tests.loopback.hivemind_swarm import Inbox, fresh, run, start

pytestmark = pytest.mark.loopback


_open: list[asyncio.StreamWriter] = []
"""Streams to close when a scenario ends."""


async def close(*peers: HivemindTransport) -> None:
    for writer in _open:
        writer.transport.abort()
    _open.clear()
    for peer in peers:
        await peer.close()


async def begin(attacker: HivemindTransport, victim: HivemindTransport, data: bytes) -> asyncio.StreamReader:
    """Open a stream and write these bytes to it; the stream stays open."""
    reader, writer = await attacker._daemon.open_stream(victim.peer_id, framing.FRAME_PROTOCOL)
    _open.append(writer)
    writer.write(data)
    with suppress(OSError):
        await writer.drain()
    return reader


async def until(holds: Callable[[], bool]) -> None:
    """Run the event loop until a condition holds that no event announces; the scenario's time limit ends it."""
    while not holds():  # noqa: ASYNC110 - nothing is awaited but a turn of the loop
        await asyncio.sleep(0)


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


async def guarded() -> tuple[HivemindTransport, NodeGuard, Node]:
    clock = SystemClock()
    node = Node(fresh(), Digest(bytes(32)), MemoryBlobs(), random.Random(1), NodeConfig(role=Role.LEARNER), clock.now())
    guard = NodeGuard(node, clock)
    return await start(guard=guard), guard, node


def test_empty_frames_ban_their_sender_and_nobody_else() -> None:
    async def scenario() -> None:
        victim, guard, node = await guarded()
        attacker, honest = await start(victim.addresses[0]), await start(victim.addresses[0])
        inbox = Inbox(victim)
        try:
            for _ in range(3):
                assert not guard.is_banned(attacker.peer_id)
                assert await ended(await begin(attacker, victim, bytes(4)))
            assert guard.is_banned(attacker.peer_id)
            assert await ended(await begin(attacker, victim, b"\x01\0\0\0x")), "not even read"
            await honest.send(victim.peer_id, b"hello", timeout_s=10)
            assert await inbox.next() == (honest.peer_id, b"hello")
            assert node._core.connections.subnets.of(honest.peer_id) == "127.0.0.0/24"
        finally:
            await close(attacker, honest, victim)

    run(scenario)


def test_streams_opened_and_dropped_ban_their_opener() -> None:
    async def scenario() -> None:
        victim, guard, _ = await guarded()
        attacker = await start(victim.addresses[0])
        Inbox(victim)
        try:
            for _ in range(40):
                _, writer = await attacker._daemon.open_stream(victim.peer_id, framing.FRAME_PROTOCOL)
                writer.write(b"\x10")
                await writer.drain()
                writer.transport.abort()
            await until(lambda: guard.is_banned(attacker.peer_id))
        finally:
            await close(attacker, victim)

    run(scenario)


def test_half_frames_hold_little_and_delay_nobody() -> None:
    async def scenario() -> None:
        victim, _, _ = await guarded()
        attacker, honest = await start(victim.addresses[0]), await start(victim.addresses[0])
        inbox = Inbox(victim)
        try:
            large = (limits.MAX_FRAME_BYTES).to_bytes(4, "little") + os.urandom(100_000)
            assert await ended(await begin(attacker, victim, large)), "a stranger begins no chunk"
            half = (limits.MAX_CONTROL_FRAME_BYTES).to_bytes(4, "little") + bytes(100_000)
            readers = [await begin(attacker, victim, half) for _ in range(6)]
            waiting = {asyncio.create_task(ended(reader)) for reader in readers}
            while len(waiting) > framing.MAX_INBOUND_STREAMS_PER_PEER:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                assert all(task.result() for task in done)
            await honest.send(victim.peer_id, b"hello", timeout_s=10)
            assert await inbox.next() == (honest.peer_id, b"hello")
            await until(lambda: victim._inbound.held_bytes >= 400_000)
            for task in waiting:
                task.cancel()
            assert victim._inbound.held_bytes == 400_000
        finally:
            await close(attacker, honest, victim)
        assert victim._inbound.held_bytes == 0

    run(scenario)


def test_a_lone_daemon_looks_for_nobody() -> None:
    """It offers libp2p's own routing to its peers, but joins no network: none of IPFS's bootstrap peers is dialed."""

    async def scenario() -> None:
        alone = await start()
        pb = light_import.load().p2pd_pb2
        try:
            for _ in range(20):
                reply = await alone._daemon._ask(pb.Request(type=pb.Request.LIST_PEERS))
                assert list(reply.peers) == []
            assert await alone._directory._node.p2p.list_peers() == []
        finally:
            await alone.close()

    run(scenario)
