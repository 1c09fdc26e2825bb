"""The hivemind transport over real daemons on 127.0.0.1: discovery, records, frames, deaths, memory and errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from p2prl.clock import SystemClock
from p2prl.errors import ConfigError, MachineError, TransportError, UnreachableError
from p2prl.net.transports.hivemind import light_import
from p2prl.net.transports.hivemind.daemon_config import DAEMON_VARIABLE, DaemonConfig
from p2prl.net.transports.hivemind.transport import HivemindOptions, HivemindTransport
from p2prl.protocol import limits
from p2prl.protocol.identity import Identity, PeerId

pytestmark = pytest.mark.loopback

LOCAL = ("/ip4/127.0.0.1/tcp/0",)
OPTIONS = HivemindOptions(daemon=DaemonConfig(nat_port_map=False, auto_nat=False))
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
    return await HivemindTransport.start(fresh(), listen=LOCAL, bootstrap=bootstrap, options=OPTIONS, **more)


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


def test_four_peers_find_each_other_through_one_and_read_each_others_records() -> None:
    async def scenario() -> None:
        async with swarm(4) as peers:
            expires_at = time.time() + 60
            for peer in peers:
                assert await peer.put_record(KEY, b"I am " + peer.peer_id.encode(), expires_at)
            expected = {peer.peer_id: b"I am " + peer.peer_id.encode() for peer in peers}
            for peer in peers:
                assert await peer.get_records(KEY) == expected
                assert await peer.get_records(b"another run") == {}
            assert not await peers[1].put_record(KEY, b"older", expires_at - 30)
            assert await peers[1].put_record(KEY, b"newer", expires_at + 30)
            for peer in peers:
                assert (await peer.get_records(KEY))[peers[1].peer_id] == b"newer"
            # Only ever told of the first peer, the last two still reach each other by id.
            inboxes = [Inbox(peer) for peer in peers]
            for sender in peers:
                for receiver, inbox in zip(peers, inboxes, strict=True):
                    if sender is not receiver:
                        await sender.send(receiver.peer_id, b"hello", timeout_s=10)
                        assert await inbox.next() == (sender.peer_id, b"hello")

    run(scenario)


class BelievesAnything:
    """A directory node that neither signs nor checks."""

    def validate(self, record: object) -> bool:
        return True

    def sign_value(self, record: Any) -> bytes:
        return bytes(record.value) + bytes(64)

    def strip_value(self, record: Any) -> bytes:
        return bytes(record.value[:-64])


def test_forged_records_are_refused_and_hide_no_honest_ones() -> None:
    async def scenario() -> None:
        async with swarm(3) as (honest, liar, reader):
            now = time.time()
            assert await honest.put_record(KEY, b"true", now + 60)
            node = liar._directory._node
            own = str(liar.peer_id)
            assert not await node.store(KEY, b"forged", now + 120, subkey=str(honest.peer_id))
            protocol = node.protocol
            protocol.record_validator = BelievesAnything()
            protocol._validate_dictionary = lambda key, dictionary: True
            for later, subkey in enumerate((str(honest.peer_id), str(reader.peer_id), own, "nobody", b"", 7)):
                await node.store(KEY, b"forged", now + 120 + later, subkey=subkey)
            await node.store(b"plain", b"forged", now + 120)
            assert await node.get(KEY, latest=True)  # the liar itself holds the forgeries
            assert await reader.get_records(KEY) == {honest.peer_id: b"true"}
            assert await honest.get_records(KEY) == {honest.peer_id: b"true"}
            assert await reader.get_records(b"plain") == {}

    run(scenario)


def test_a_directory_node_that_lies_about_the_container_hides_nothing() -> None:
    async def scenario() -> None:
        async with swarm(4) as (first, second, liar, reader):
            now = time.time()
            for peer in (first, second):
                assert await peer.put_record(KEY, b"true", now + 60)
            protocol = liar._directory._node.protocol
            key = next(iter(protocol.storage.data))
            dictionary = protocol.storage.get(key).value
            entries = dict(dictionary.items())

            def lie(owners: dict[Any, Any], *, maxsize: Any = 1, latest: float = math.inf) -> None:
                dictionary.clear()
                dictionary.maxsize, dictionary.latest_expiration_time = math.inf, latest
                for owner, (value, expires_at) in owners.items():
                    dictionary.store(owner, value, expires_at)
                dictionary.maxsize = maxsize
                protocol.storage.data[key] = type(protocol.storage.data[key])(dictionary, latest)

            expected = {first.peer_id: b"true", second.peer_id: b"true"}
            signer = protocol.record_validator
            record = light_import.load().DHTRecord(key.to_bytes(), b"\xd94" + liar.peer_id.encode(), b"\xc1", now + 60)
            assert len(liar.peer_id) == 0x34
            unpackable = {str(liar.peer_id): (signer.sign_value(record), now + 60)}
            for owners in ({}, unpackable, dict([*entries.items()][:1]), {"x": (b"", now + 99)}):
                for maxsize in (1, math.inf, "many"):
                    lie(owners, maxsize=maxsize if len(owners) < 1 or maxsize != "many" else 1)
                    assert await reader.get_records(KEY) == expected

    run(scenario)


def test_expired_records_are_gone() -> None:
    async def scenario() -> None:
        clock = OffsetClock()
        first = await start()
        second = await start(first.addresses[0], clock=clock)
        try:
            assert await first.put_record(KEY, b"short-lived", time.time() + 30)
            assert first.peer_id in await second.get_records(KEY)
            clock.offset_s = 31
            assert await second.get_records(KEY) == {}
            assert not await first.put_record(KEY, b"dead on arrival", time.time() - 1)
        finally:
            await second.close()
            await first.close()

    run(scenario)


def test_frames_of_every_size_arrive_whole_and_from_whom_they_say() -> None:
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


def test_a_hung_peer_costs_its_sender_the_timeout_and_others_nothing(
    peer_process: Callable[..., PeerProcess],
) -> None:
    async def scenario() -> None:
        async with swarm(2) as (me, other):
            inbox, _ = Inbox(me), Inbox(other)
            hung = await asyncio.to_thread(peer_process, me.addresses[0])
            await me.send(hung.peer_id, b"are you there", timeout_s=10)
            assert await inbox.next() == (hung.peer_id, b"are you there")
            hung.process.send_signal(signal.SIGSTOP)
            started_at = time.monotonic()
            stuck = asyncio.create_task(me.send(hung.peer_id, b"hello?", timeout_s=2))
            for _ in range(50):
                await me.send(other.peer_id, b"go on", timeout_s=1)
            assert not stuck.done()
            with pytest.raises(TransportError, match="took no frame"):
                await stuck
            assert 2 <= time.monotonic() - started_at < 4
            hung.process.send_signal(signal.SIGCONT)
            await me.send(hung.peer_id, b"welcome back", timeout_s=10)

    run(scenario)


def test_a_killed_peer_leaves_no_daemon_and_sends_to_it_fail_in_time(peer_process: Callable[..., PeerProcess]) -> None:
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


def test_the_network_process_is_light_and_its_daemon_ends_with_it(peer_process: Callable[..., PeerProcess]) -> None:
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


def test_a_wrong_clock_is_measured_and_said(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        first = await start()
        clock = OffsetClock()
        clock.offset_s = -20.0
        with caplog.at_level(logging.WARNING, "p2prl.net"):
            second = await start(first.addresses[0], clock=clock)
        assert second.clock_skew_s == pytest.approx(-20, abs=1)
        assert "20.0 s behind" in caplog.text
        assert first.clock_skew_s is None
        await second.close()
        await first.close()

    run(scenario)


def test_the_daemons_death_is_noticed_and_said() -> None:
    async def scenario() -> None:
        async with swarm(2) as (me, other):
            os.kill(me.daemon_pid, signal.SIGKILL)
            await me.wait_stopped()
            with pytest.raises(TransportError):
                await me.send(other.peer_id, b"hello", timeout_s=5)
            with pytest.raises(TransportError):
                await me.connect(other.addresses[0])
        with pytest.raises(TransportError, match="closed"):
            await me.send(other.peer_id, b"hello", timeout_s=5)

    run(scenario)


async def failing(**more: Any) -> None:
    arguments: dict[str, Any] = {"listen": LOCAL, "options": OPTIONS} | more
    transport = await HivemindTransport.start(fresh(), **arguments)
    await transport.close()


def test_unreachable_bootstrap_peers_are_named() -> None:
    nobody = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{fresh().peer_id}" for port in (1, 2)]
    with pytest.raises(UnreachableError) as caught:
        run(lambda: failing(bootstrap=nobody))
    assert all(address in str(caught.value) for address in nobody)
    assert caught.value.remedy


def test_a_peer_under_a_false_id_is_not_taken_for_it() -> None:
    async def scenario() -> None:
        first = await start()
        where = first.addresses[0].rpartition("/")[0]
        try:
            with pytest.raises(UnreachableError):
                await failing(bootstrap=[f"{where}/{fresh().peer_id}"])
            with pytest.raises(TransportError):
                await first.connect("/ip4/300.1.1.1/tcp/1")
        finally:
            await first.close()

    run(scenario)


def test_a_port_in_use_is_a_machine_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = (f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}",)
        with pytest.raises(MachineError, match=listen[0]) as caught:
            run(lambda: failing(listen=listen))
    assert "port" in caught.value.remedy
    with pytest.raises(MachineError, match="not an address of this machine"):
        run(lambda: failing(listen=("/ip4/192.0.2.1/tcp/0",)))
    with pytest.raises(ConfigError):
        run(lambda: failing(listen=("localhost:4001",)))


def test_a_daemon_that_cannot_run_is_a_machine_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    not_executable, wrong, silent = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    not_executable.write_text("#!/bin/sh\n")
    wrong.write_bytes(b"\x00not a program")
    wrong.chmod(0o755)
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(0o755)
    for path in (tmp_path / "none", not_executable, wrong, silent):
        monkeypatch.setenv(DAEMON_VARIABLE, str(path))
        with pytest.raises(MachineError) as caught:
            run(failing)
        assert caught.value.remedy
        if path is not silent:
            assert DAEMON_VARIABLE in caught.value.remedy


def test_closing_twice_is_fine_and_removes_the_sockets() -> None:
    async def scenario() -> None:
        peer = await start()
        folder = peer._daemon.folder
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not (folder / "identity").exists()
        await peer.close()
        await peer.close()
        assert not folder.exists()

    run(scenario)
