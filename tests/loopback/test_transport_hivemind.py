"""The hivemind transport over real daemons on 127.0.0.1: frames, hung and killed peers, memory, the daemon's end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from p2prl.errors import TransportError
from p2prl.net.transports.hivemind import light_import
from p2prl.net.transports.hivemind.daemon import Daemon, sized_message
from p2prl.net.transports.hivemind.daemon_config import DaemonConfig
from p2prl.net.transports.hivemind.relay_slots import RelaySlots
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.net.transports.inbound_streams import NoGuard
from p2prl.net.transports.multiaddrs import multihash_of, split_peer, to_bytes
from p2prl.net.transports.simultaneous_open import dial_in_short_packets
from p2prl.net.transports.tcp_trial import Outcome, outcome_of
from p2prl.protocol import limits
from p2prl.protocol.identity import PeerId
from p2prl_lab.testing.swarm_processes import freeze
from tests.loopback.hivemind_swarm import DAEMON_CONFIG, KEY, LOCAL, Inbox, fresh, run, start, swarm

pytestmark = pytest.mark.loopback


class PeerProcess:
    """`transport_peer.py`, running."""

    def __init__(self, *bootstrap: str) -> None:
        command = [sys.executable, str(Path(__file__).with_name("transport_peer.py")), os.urandom(16).hex(), *bootstrap]
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(root)},
        )
        up = self.read()
        self.peer_id = PeerId(up["peer_id"])
        self.address: str = up["addresses"][0]
        self.daemon = psutil.Process(up["daemon_pid"])

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def memory(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        return self.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)


@pytest.fixture
def peer_process() -> Iterator[Callable[..., PeerProcess]]:
    started: list[PeerProcess] = []

    def launch(*bootstrap: str) -> PeerProcess:
        started.append(PeerProcess(*bootstrap))
        return started[-1]

    yield launch
    for peer in started:
        peer.kill()
        assert peer.process.stdin is not None
        assert peer.process.stdout is not None
        peer.process.stdin.close()
        peer.process.stdout.close()
        with contextlib.suppress(psutil.NoSuchProcess):
            peer.daemon.wait(timeout=10)


def test_frames_of_every_size_arrive_complete_from_the_right_sender() -> None:
    async def scenario() -> None:
        async with swarm(3) as (first, second, third):
            inbox = Inbox(first)
            edge = limits.MAX_CONTROL_FRAME_BYTES
            for size in (1, 4096, edge, edge + 1, 1 << 20, limits.MAX_FRAME_BYTES):
                for sender in (second, third):
                    frame = os.urandom(size)
                    await sender.send(first.peer_id, frame, timeout_s=20)
                    assert await inbox.next() == (sender.peer_id, frame)
            numbered = [index.to_bytes(4, "big") * 100 for index in range(500)]
            await asyncio.gather(*(second.send(first.peer_id, frame, timeout_s=20) for frame in numbered))
            assert [(await inbox.next())[1] for _ in numbered] == numbered

    run(scenario)


def test_a_peer_without_a_receiver_takes_no_frame() -> None:
    async def scenario() -> None:
        async with swarm(2) as (first, second):
            with pytest.raises(TransportError):
                await second.send(first.peer_id, b"too early", timeout_s=5)
            inbox = Inbox(first)
            await second.send(first.peer_id, b"now", timeout_s=5)
            assert await inbox.next() == (second.peer_id, b"now")

    run(scenario)


def sockets(transport: HivemindTransport) -> set[str]:
    """The daemon's sockets of connections to others, by their inodes: ports stay when a connection is replaced."""
    daemon = psutil.Process(transport._daemon.pid)
    established = [each for each in daemon.net_connections("tcp4") if each.status == psutil.CONN_ESTABLISHED]
    return {os.readlink(f"/proc/{daemon.pid}/fd/{each.fd}") for each in established}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_connection_is_replaced_only_if_somebody_listens_at_the_address() -> None:
    async def scenario() -> None:
        async with swarm(2) as (first, second):
            inbox = Inbox(first)
            with socket.create_server(("127.0.0.1", 0)) as server:
                free = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{first.peer_id}"
            before = sockets(second)
            with pytest.raises(TransportError, match="accepts no connection"):
                await second.replace_circuit(free)
            assert sockets(second) == before != set()
            assert await second.replace_circuit(first.addresses[0]) == first.peer_id
            assert sockets(second).isdisjoint(before)
            await second.send(first.peer_id, b"over the new one", timeout_s=5)
            assert await inbox.next() == (second.peer_id, b"over the new one")

    run(scenario)


class Noted(NoGuard):
    """Where each peer was seen."""

    def __init__(self) -> None:
        self.seen: dict[PeerId, list[str]] = {}

    def note_address(self, peer: PeerId, address: str) -> None:
        self.seen.setdefault(peer, []).append(address)


def test_a_meeting_carries_frames_both_ways_and_tells_where_the_peer_is() -> None:
    async def scenario() -> None:
        guard = Noted()
        async with swarm(1) as (first,), contextlib.AsyncExitStack() as cleanup:
            second = await start(guard=guard)
            cleanup.push_async_callback(second.close)
            inbox, other = Inbox(first), Inbox(second)
            address = first.addresses[0]
            await second.meet(address, dials=True)
            for size in (1, 3_000_000):
                await second.send(first.peer_id, bytes(size), timeout_s=20)
                assert await inbox.next() == (second.peer_id, bytes(size))
                await first.send(second.peer_id, bytes(size), timeout_s=20)
                assert await other.next() == (first.peer_id, bytes(size))
            assert {each.partition("/p2p/")[0] for each in guard.seen[first.peer_id]} == {
                address.partition("/p2p/")[0]
            }, "not the loopback address under which the daemon knows it"

    run(scenario)


def test_a_line_of_short_packets_gets_connections_that_this_process_carries() -> None:
    async def scenario() -> None:
        async with swarm(1) as (first,), contextlib.AsyncExitStack() as cleanup:
            assert await outcome_of(first.addresses[0]) is Outcome.GREETED, "a daemon answers long packets"
            second = await start()
            cleanup.push_async_callback(second.close)
            inbox, other = Inbox(first), Inbox(second)
            second._in_short_packets = True
            await second.connect(first.addresses[0])
            remotes = await second._daemon.remotes(first.peer_id)
            assert remotes
            assert all(map(second._splices.carries, remotes))
            for size in (1, 3_000_000):
                await second.send(first.peer_id, bytes(size), timeout_s=20)
                assert await inbox.next() == (second.peer_id, bytes(size))
                await first.send(second.peer_id, bytes(size), timeout_s=20)
                assert await other.next() == (first.peer_id, bytes(size))
            await second.connect(first.addresses[0])
            assert await second._daemon.remotes(first.peer_id) == remotes, "it serves already"

    run(scenario)


def test_short_packets_are_announced_before_the_connection_stands() -> None:
    async def scenario() -> int:
        with socket.create_server(("127.0.0.1", 0)) as server:
            where = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}"
            with await dial_in_short_packets(where, ()) as dialed, server.accept()[0] as accepted:
                ways = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) for each in (dialed, accepted)]
        return max(ways)

    assert asyncio.run(scenario()) + 60 <= 1_280  # headers of IPv6 and TCP


def test_a_meeting_with_nobody_leaves_the_link_that_there_is() -> None:
    async def scenario() -> None:
        async with swarm(2) as (first, second):
            inbox = Inbox(first)
            with socket.create_server(("127.0.0.1", 0)) as server:
                free = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{first.peer_id}"
            with pytest.raises(TransportError, match="no meeting with"):
                await second.meet(free, dials=True)
            await second.send(first.peer_id, b"the link before stays", timeout_s=5)
            assert await inbox.next() == (second.peer_id, b"the link before stays")

    run(scenario)


def test_a_slot_that_this_process_reserves_carries_a_circuit_which_is_told_from_a_direct_link() -> None:
    """The daemon knows nothing of it: no relay is named to the home's."""

    async def scenario() -> None:
        public, guard = replace(DAEMON_CONFIG, is_public=True), Noted()
        async with contextlib.AsyncExitStack() as cleanup:

            async def started(
                config: DaemonConfig = DAEMON_CONFIG, listen: tuple[str, ...] = LOCAL
            ) -> HivemindTransport:
                made = await HivemindTransport.start(fresh(), listen=listen, daemon_config=config, guard=guard)
                cleanup.push_async_callback(made.close)
                return made

            relay = await started(public)
            where, _ = split_peer(relay.addresses[0])
            home, guest, other = [await started(listen=()) for _ in range(3)]  # so that nobody dials them directly
            for each in (home, guest, other):
                await each._daemon.connect(relay.peer_id, (to_bytes(where),))
            inbox = Inbox(home)
            circuit = f"{relay.addresses[0]}/p2p-circuit/p2p/{home.peer_id}"
            with pytest.raises(TransportError, match="NO_RESERVATION"):
                await guest.connect(circuit)
            slots = RelaySlots(home._daemon.open_stream, own=home.peer_id)
            await slots.completed((circuit,), 0.0)
            assert await slots.completed((), 1.0) == (circuit,)
            await other.connect(circuit)
            await other.send(home.peer_id, b"over the circuit", timeout_s=10)
            assert await inbox.next() == (other.peer_id, b"over the circuit")
            guard.seen.clear()
            await other.connect(f"/ip4/127.0.0.1/tcp/9/p2p/{home.peer_id}")
            assert guard.seen[home.peer_id] == [circuit.rpartition("/p2p/")[0]], "no link where nobody is"

    run(scenario)


def test_a_hung_peer_delays_only_its_own_sender(
    peer_process: Callable[..., PeerProcess],
) -> None:
    async def scenario() -> None:
        async with swarm(2) as (me, other):
            inbox, _ = Inbox(me), Inbox(other)
            hung = await asyncio.to_thread(peer_process, me.addresses[0])
            await me.send(hung.peer_id, b"are you there", timeout_s=10)
            assert await inbox.next() == (hung.peer_id, b"are you there")
            freeze(hung.process)
            started_at = time.monotonic()
            stuck = asyncio.create_task(me.send(hung.peer_id, b"hello?", timeout_s=2))
            for _ in range(50):
                await me.send(other.peer_id, b"go on", timeout_s=1)
            assert not stuck.done()
            with pytest.raises(TransportError, match="did not accept a frame"):
                await stuck
            assert 2 <= time.monotonic() - started_at < 4
            hung.process.send_signal(signal.SIGCONT)
            await me.send(hung.peer_id, b"welcome back", timeout_s=10)

    run(scenario)


def test_a_killed_peer_leaves_no_daemon_and_sends_fail_in_time(peer_process: Callable[..., PeerProcess]) -> None:
    async def scenario() -> None:
        async with swarm(2) as (me, other):
            Inbox(other)
            victim = await asyncio.to_thread(peer_process, me.addresses[0])
            assert await me.connect(victim.address) == victim.peer_id
            await me.send(victim.peer_id, b"hello", timeout_s=10)
            victim.kill()
            with contextlib.suppress(psutil.NoSuchProcess):
                await asyncio.to_thread(victim.daemon.wait, 10)
            for frame in (b"small", bytes(1 << 20)):
                started_at = time.monotonic()
                with pytest.raises(TransportError, match=victim.peer_id):
                    await me.send(victim.peer_id, frame, timeout_s=3)
                assert time.monotonic() - started_at < 4
            with pytest.raises(TransportError, match="cannot reach"):
                await me.connect(victim.address)
            await me.send(other.peer_id, b"life goes on", timeout_s=5)
            assert await me.put_record(KEY, b"still here", time.time() + 60)
            assert await other.get_records(KEY) == {me.peer_id: b"still here"}

    run(scenario)


def test_a_peer_process_is_light_and_its_daemon_ends_with_it(peer_process: Callable[..., PeerProcess]) -> None:
    peer = peer_process()

    async def scenario() -> None:
        me = await start(peer.address)
        inbox = Inbox(me)
        try:
            for size in (100, 100_000, 4_000_000):
                await me.send(peer.peer_id, bytes(size), timeout_s=20)
                assert len((await inbox.next())[1]) == size
        finally:
            await me.close()

    run(scenario)
    memory = peer.memory()
    assert memory["heavy"] == []
    assert memory["rss_kb"] < 80_000
    assert peer.process.stdin is not None
    peer.process.stdin.close()
    assert peer.process.wait(timeout=10) == 0
    with contextlib.suppress(psutil.NoSuchProcess):
        peer.daemon.wait(timeout=1)


def test_the_daemons_death_ends_the_transport() -> None:
    async def scenario() -> None:
        async with swarm(2) as (me, other):
            os.kill(me._daemon.pid, signal.SIGKILL)
            await me.wait_stopped()
            with pytest.raises(TransportError):
                await me.send(other.peer_id, b"hello", timeout_s=5)
            with pytest.raises(TransportError):
                await me.connect(other.addresses[0])
        with pytest.raises(TransportError, match="closed"):
            await me.send(other.peer_id, b"hello", timeout_s=5)

    run(scenario)


def test_closing_twice_removes_the_sockets() -> None:
    async def scenario() -> None:
        peer = await start()
        folder = peer._daemon.folder
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not (folder / "identity").exists()
        await peer.close()
        await peer.close()
        assert not folder.exists()

    run(scenario)


def test_a_stream_that_the_daemon_brought_is_closed_with_it() -> None:
    """Also one that its task does not end: a socket that nobody closes outlives its loop."""

    async def scenario() -> None:
        begun, never = asyncio.Event(), asyncio.Event()

        async def goes_on(*_: object) -> None:
            begun.set()
            await never.wait()

        identity = fresh()
        daemon = await Daemon.start(identity, replace(DAEMON_CONFIG, listen=LOCAL))
        try:
            await daemon.handle_streams("/test/1", goes_on)
            reader, writer = await asyncio.open_unix_connection(daemon.folder / "streams-0.sock")
            info = light_import.load().p2pd_pb2.StreamInfo(
                peer=multihash_of(identity.peer_id), addr=b"", proto="/test/1"
            )
            writer.write(sized_message(info.SerializeToString()))
            await begun.wait()
        finally:
            await daemon.close()
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()

    run(scenario)
