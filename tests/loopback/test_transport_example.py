"""The example transport (`examples/transport`): its handshake, and whole roles that find it by its entry point."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from p2prl.clock import SystemClock
from p2prl.errors import ConfigError, MachineError, TransportError, UnreachableError
from p2prl.net.ports import Transport, TransportConfig
from p2prl.protocol import limits
from p2prl.protocol.identity import Identity, PeerId

pytestmark = pytest.mark.loopback

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "transport"
LOCAL = ("/ip4/127.0.0.1/tcp/0",)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tcp_transport", EXAMPLE / "tcp_transport.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def config(*bootstrap: str, listen: tuple[str, ...] = LOCAL) -> TransportConfig:
    identity = Identity.generate(os.urandom(16))
    return TransportConfig(identity=identity, listen=listen, bootstrap=bootstrap, clock=SystemClock())


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(bounded())


def test_frames_cross_both_ways_after_one_dial(example: ModuleType) -> None:
    async def scenario() -> None:
        first: Transport = await example.start_tcp(config())
        second: Transport = await example.start_tcp(config(first.addresses[0]))
        arrived: asyncio.Queue[tuple[PeerId, bytes]] = asyncio.Queue()
        for peer in (first, second):
            peer.set_receiver(lambda sender, frame: arrived.put_nowait((sender, frame)))
        for sender, receiver in ((second, first), (first, second)):
            for size in (1, limits.MAX_CONTROL_FRAME_BYTES, limits.MAX_FRAME_BYTES):
                frame = os.urandom(size)
                await sender.send(receiver.peer_id, frame, timeout_s=10)
                assert await arrived.get() == (sender.peer_id, frame)
        for peer in (second, first):
            await peer.close()
            await peer.close()
        assert len(asyncio.all_tasks()) == 1

    run(scenario)


def test_a_peer_under_a_false_id_is_refused(example: ModuleType) -> None:
    async def scenario() -> None:
        first = await example.start_tcp(config())
        where = first.addresses[0].rpartition("/")[0]
        stranger = Identity.generate(os.urandom(16)).peer_id
        with pytest.raises(UnreachableError):
            await example.start_tcp(config(f"{where}/{stranger}"))
        second = await example.start_tcp(config())
        with pytest.raises(TransportError, match="different peer"):
            await second.connect(f"{where}/{stranger}")
        with pytest.raises(TransportError):
            await second.send(stranger, b"hello", timeout_s=5)
        for peer in (second, first):
            await peer.close()

    run(scenario)


def test_a_dialer_that_proves_no_key_delivers_nothing(example: ModuleType) -> None:
    async def scenario() -> None:
        peer = await example.start_tcp(config())
        frames: list[bytes] = []
        peer.set_receiver(lambda _, frame: frames.append(frame))
        port = int(peer.addresses[0].split("/")[4])
        victim = Identity.generate(os.urandom(16))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(victim.public_key + bytes(34) + bytes(64) + b"\x01\x00\x00\x00x")
        await reader.read(-1)  # it hangs up
        writer.close()
        assert frames == []
        await peer.close()

    run(scenario)


@pytest.mark.parametrize(
    ("listen", "error"), [("/ip6/::1/tcp/0", ConfigError), ("/ip4/192.0.2.77/tcp/0", MachineError)]
)
def test_a_wrong_listen_address_is_reported(example: ModuleType, listen: str, error: type[Exception]) -> None:
    async def scenario() -> None:
        with pytest.raises(error):
            await example.start_tcp(config(listen=(listen,)))

    run(scenario)


def test_roles_run_over_an_installed_transport(tmp_path: Path) -> None:
    project: dict[str, Any] = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "installed" / "p2prl_example_transport-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = "\n".join(f"{name} = {value}" for name, value in project["entry-points"]["p2prl.transports"].items())
    (info / "entry_points.txt").write_text(f"[p2prl.transports]\n{lines}\n")
    path = os.pathsep.join(map(str, (ROOT, EXAMPLE, tmp_path / "installed")))
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("two_roles.py")), "tcp", "tcp", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    told = json.loads(ended.stdout)
    assert (told["intact"], told["slot"], told["peers"]) == (True, 1, {"volunteer": 1})
    assert told["rate_bytes_s"] < 1_600_000, "the learner's upload cap is 1.5 MB/s"
