"""Bad peers of the real program: garbage, oversized frames, poisoned chunks, wrong clocks, newer wire versions."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from p2prl.errors import TransportError
from p2prl.installation import this_installation
from p2prl.net.storage.key_file import create_identity
from p2prl.net.transports import framing
from p2prl.net.transports.hivemind.daemon_config import DaemonConfig
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol import frames, limits, wire_version
from p2prl.protocol.digests import digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import JoinLink, parse_link
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.link_messages import Hello, Push
from tests.loopback.program import (
    ENVIRONMENT,
    LISTEN,
    UNHURRIED,
    RunningRole,
    eventually,
    live_learner,
    p2prl,
    patched_python,
    refused,
    running,
    spool_states,
    volunteer_status,
)

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, RunningRole]]:
    """A run folder and its learner, which runs until the tests of this file are done."""
    with live_learner(tmp_path_factory.mktemp("live")) as found:
        yield found


def test_garbage_bans_its_sender(live: tuple[Path, RunningRole]) -> None:
    folder, learner = live
    link = parse_link((folder / "link").read_text())
    address = next(a for a in link.bootstrap if "/127.0.0.1/" in a)
    said_before = len(learner.said().splitlines())
    rogue = Identity(os.urandom(16))
    forged = bytearray(seal(rogue, LedgerHead(1, bytes(32), 1, True), run=link.run, now=time.time()))
    forged[-1] ^= 1
    garbage = [b"\x00", os.urandom(200), b"\xff" * 4096, frames.pack(Push(bytes(forged)))]

    async def attack() -> None:
        daemon_config = DaemonConfig(nat_port_map=False, auto_nat=False)
        transport = await HivemindTransport.start(
            rogue, listen=("/ip4/127.0.0.1/tcp/0",), bootstrap=[address], daemon_config=daemon_config
        )
        transport.set_receiver(lambda peer, frame: None)
        try:
            learner_id = await transport.connect(address)
            for frame in garbage:
                with suppress(TransportError):
                    await transport.send(learner_id, frame, timeout_s=5.0)
        finally:
            await transport.close()

    asyncio.run(attack())
    eventually(lambda: f"ignoring peer {rogue.peer_id[-8:]}" in learner.said(), seconds=10)
    assert learner.process.poll() is None
    news = learner.said().splitlines()[said_before:]
    about = [line for line in news if rogue.peer_id[-8:] in line]
    assert len(about) == 1, news
    assert "Traceback" not in learner.said()


def test_an_oversized_frame_ends_its_stream_only(live: tuple[Path, RunningRole]) -> None:
    folder, learner = live
    link = parse_link((folder / "link").read_text())
    address = next(a for a in link.bootstrap if "/127.0.0.1/" in a)
    hello = Hello(wire_version.WIRE_VERSION, link.run, int(Role.BOARD), int(time.time() * 1000), -1, 0)

    async def attack() -> bytes:
        daemon_config = DaemonConfig(nat_port_map=False, auto_nat=False)
        transport = await HivemindTransport.start(
            Identity(os.urandom(16)), listen=("/ip4/127.0.0.1/tcp/0",), bootstrap=[address], daemon_config=daemon_config
        )
        transport.set_receiver(lambda peer, frame: None)
        try:
            learner_id = await transport.connect(address)
            reader, writer = await transport._daemon.open_stream(learner_id, framing.FRAME_PROTOCOL)
            writer.write((limits.MAX_FRAME_BYTES + 1).to_bytes(4, "little") + bytes(1 << 16))
            with suppress(OSError):
                await writer.drain()
            try:
                answer = await asyncio.wait_for(reader.read(1), 20)
            except ConnectionError:
                answer = b""
            writer.transport.abort()
            await transport.send(learner_id, frames.pack(hello), timeout_s=10)  # raises when it is not answered
            return answer
        finally:
            await transport.close()

    assert asyncio.run(attack()) == b"", "a frame that cannot be is not acknowledged, its stream ends"
    assert learner.process.poll() is None
    assert "Traceback" not in learner.said()


CLOCK_AHEAD = "import time\nreal = time.time\ntime.time = lambda: real() + 300.0\n"


def test_a_wrong_clock_is_reported_and_loses_nothing(live: tuple[Path, RunningRole], tmp_path: Path) -> None:
    folder, _ = live
    link, home = (folder / "link").read_text().strip(), tmp_path / "home"
    fast = patched_python(tmp_path / "fast", CLOCK_AHEAD)
    log = tmp_path / "fast.log"
    with running(log, "join", link, "--home", home, *LISTEN, *UNHURRIED, patched=fast) as role:
        eventually(lambda: "this machine's clock is" in role.said())
        (told,) = [line for line in role.said().splitlines() if "clock is" in line]
        assert "300 s ahead of its peers'" in told
        assert "automatic time" in told
        eventually(lambda: sum(volunteer_status(home).get("groups", {}).values()) > 0)
        assert role.stop() == 130
        assert "Traceback" not in role.said()
    states = spool_states(home)
    assert set(states) == {"generated"}, "refused as too early, and kept"
    with running(tmp_path / "right.log", "join", link, "--home", home, *LISTEN, *UNHURRIED) as role:
        eventually(lambda: volunteer_status(home).get("groups", {}).get("verified", 0) > 0)
        assert role.stop() == 130
        assert "clock is" not in role.said()
    after = spool_states(home)
    assert after.get("rejected", 0) == after.get("expired", 0) == 0
    assert sum(after.values()) > sum(states.values())


POISONED_CHUNKS = """
from p2prl.net.storage.disk_blobs import DiskBlobStore
honest = DiskBlobStore.read
DiskBlobStore.read = lambda self, ref, index: bytes([honest(self, ref, index)[0] ^ 1]) + honest(self, ref, index)[1:]
"""


def test_poisoned_weights_come_from_another_peer(live: tuple[Path, RunningRole], tmp_path: Path) -> None:
    folder, _ = live
    link = parse_link((folder / "link").read_text())
    poison = patched_python(tmp_path / "poison", POISONED_CHUNKS)
    liars_home, home = tmp_path / "liar", tmp_path / "home"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"/ip4/127.0.0.1/tcp/{free.getsockname()[1]}"
    arguments = ("join", link, "--home", liars_home, "--listen", at, *UNHURRIED)
    with running(tmp_path / "liar.log", *arguments, patched=poison) as liar:
        eventually(lambda: sum(volunteer_status(liars_home).get("groups", {}).values()) > 0)
        shown = json.loads(p2prl("key", "show", "--home", liars_home, "--json").stdout)
        name = shown["seats"]["seat-1"]
        both = JoinLink(link.name, link.run, (*link.bootstrap, f"{at}/p2p/{name}"))
        with running(tmp_path / "victim.log", "join", both, "--home", home, *LISTEN, *UNHURRIED) as victim:
            eventually(lambda: f"ignoring peer {name[-8:]}" in victim.said())
            eventually(lambda: volunteer_status(home).get("groups", {}).get("verified", 0) > 0)
            assert victim.stop() == 130
            assert "Traceback" not in victim.said()
        assert liar.process.poll() is None


def test_a_newer_wire_version_ends_each_worker_with_the_command_that_updates_it(tmp_path: Path) -> None:
    key, run_name = Identity(os.urandom(16)), digest("p2prl/test-run", b"newer")
    create_identity(tmp_path / "newer.json", key)
    peer = subprocess.Popen(
        [
            sys.executable,
            *("-m", "p2prl_lab.testing.newer_peer"),
            str(tmp_path / "newer.json"),
            run_name.hex(),
            str(tmp_path / "blobs"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert peer.stdout is not None
        address = peer.stdout.readline().strip()
        link = JoinLink("newer", run_name, (address,))
        for command in ("join", "seed"):  # with torch and without
            result = p2prl(command, link, "--home", tmp_path / "home", *LISTEN)
            refused(result, 5, f"speak wire version {wire_version.WIRE_VERSION + 1}")
            assert this_installation().update_command in result.stderr
    finally:
        peer.kill()
        peer.communicate()
