"""The libp2p transport: frames to and from the go daemon, no plaintext, and whole roles that run over it.

Runs where py-libp2p is importable: by this interpreter, or by the one that P2PRL_LIBP2P_PYTHON names.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from p2prl import __version__
from p2prl.errors import TransportError
from p2prl.net.transports.hivemind.daemon_config import DaemonConfig
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol import limits
from p2prl.protocol.identity import Identity, PeerId
from p2prl_lab.testing.swarm_processes import freeze

PYTHON = os.environ.get("P2PRL_LIBP2P_PYTHON") or (sys.executable if importlib.util.find_spec("libp2p") else None)

pytestmark = [
    pytest.mark.loopback,
    pytest.mark.extra,
    pytest.mark.skipif(PYTHON is None, reason="the libp2p extra is not installed"),
]

SIZES = (1, 4096, limits.MAX_CONTROL_FRAME_BYTES, 1 << 20, limits.MAX_FRAME_BYTES)


class LightPeer:
    """`libp2p_peer.py`, running in the interpreter that has py-libp2p."""

    def __init__(self, *arguments: str) -> None:
        assert PYTHON is not None
        here = Path(__file__)
        self.process = subprocess.Popen(
            [PYTHON, str(here.with_name("libp2p_peer.py")), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(here.parents[2])},
        )
        self.up = self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def ask(self, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.read()


@pytest.fixture
def light_peer() -> Iterator[Callable[..., LightPeer]]:
    started: list[LightPeer] = []

    def launch(*arguments: str) -> LightPeer:
        started.append(LightPeer(*arguments))
        return started[-1]

    yield launch
    for peer in started:
        peer.process.kill()
        peer.process.communicate(timeout=10)


def with_daemon(scenario: Callable[[HivemindTransport], Awaitable[None]]) -> None:
    async def bounded() -> None:
        daemon_config = DaemonConfig(nat_port_map=False, auto_nat=False)
        async with asyncio.timeout(60):
            peer = await HivemindTransport.start(
                Identity.generate(os.urandom(16)), listen=("/ip4/127.0.0.1/tcp/0",), daemon_config=daemon_config
            )
            try:
                await scenario(peer)
            finally:
                await peer.close()

    asyncio.run(bounded())


def test_frames_cross_between_the_daemon_and_py_libp2p_both_ways(light_peer: Callable[..., LightPeer]) -> None:
    async def scenario(heavy: HivemindTransport) -> None:
        arrivals: asyncio.Queue[tuple[PeerId, bytes]] = asyncio.Queue()
        heavy.set_receiver(lambda peer, frame: arrivals.put_nowait((peer, frame)))
        entropy = os.urandom(16)
        light = await asyncio.to_thread(light_peer, "serve", entropy.hex(), heavy.addresses[0])
        light_id = Identity.generate(entropy).peer_id
        assert light.up["peer_id"] == light_id
        for size in SIZES:
            told = await asyncio.to_thread(light.ask, do="send", peer=heavy.peer_id, size=size)
            sender, frame = await arrivals.get()
            assert (sender, len(frame)) == (light_id, size)
            assert hashlib.sha256(frame).hexdigest() == told["digest"]
        for size in SIZES:  # over the connection that the light peer opened
            frame = os.urandom(size)
            await heavy.send(light_id, frame, timeout_s=20)
            told = await asyncio.to_thread(light.ask, do="receive")
            assert told == {"peer": heavy.peer_id, "digest": hashlib.sha256(frame).hexdigest(), "size": size}
        assert "bootstrap peers only" in (await asyncio.to_thread(light.ask, do="records"))["error"]

    with_daemon(scenario)


def test_the_daemon_can_dial_a_light_peer(light_peer: Callable[..., LightPeer]) -> None:
    async def scenario(heavy: HivemindTransport) -> None:
        light = await asyncio.to_thread(light_peer, "serve", os.urandom(16).hex())
        assert await heavy.connect(light.up["addresses"][0]) == light.up["peer_id"]
        await heavy.send(PeerId(light.up["peer_id"]), b"hello", timeout_s=10)
        assert (await asyncio.to_thread(light.ask, do="receive"))["size"] == 5
        freeze(light.process)
        with pytest.raises(TransportError):
            await heavy.send(PeerId(light.up["peer_id"]), b"are you there", timeout_s=1)
        light.process.send_signal(signal.SIGCONT)

    with_daemon(scenario)


def test_a_light_peers_send_to_nobody_fails_in_time(light_peer: Callable[..., LightPeer]) -> None:
    light = light_peer("serve", os.urandom(16).hex())
    told = light.ask(do="send", peer=Identity.generate(os.urandom(16)).peer_id, size=9, timeout_s=3)
    assert "out of reach" in told["error"]
    assert told["took_s"] < 5


def test_plaintext_is_refused_by_both_and_only_by_our_choice(light_peer: Callable[..., LightPeer]) -> None:
    light = light_peer("serve", os.urandom(16).hex())
    assert light_peer("plaintext", light.up["addresses"][0]).up == {"outcome": "refused"}

    async def scenario(heavy: HivemindTransport) -> None:
        stranger = await asyncio.to_thread(light_peer, "plaintext", heavy.addresses[0])
        assert stranger.up == {"outcome": "refused"}

    with_daemon(scenario)
    # The same dial succeeds against py-libp2p's defaults, so plaintext was the reason for the refusal above.
    careless = light_peer("open")
    assert light_peer("plaintext", careless.up["addresses"][0]).up == {"outcome": "connected"}


@pytest.mark.parametrize(("learner", "volunteer"), [("libp2p", "libp2p"), ("hivemind", "libp2p")])
def test_roles_run_over_libp2p_and_keep_the_upload_cap(tmp_path: Path, learner: str, volunteer: str) -> None:
    assert PYTHON is not None
    here = Path(__file__)
    ended = subprocess.run(
        [PYTHON, str(here.with_name("two_roles.py")), learner, volunteer, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=True,
        env=os.environ | {"PYTHONPATH": str(here.parents[2])},
    )
    told = json.loads(ended.stdout)
    assert (told["intact"], told["slot"], told["peers"]) == (True, 1, {"volunteer": 1})
    assert told["rate_bytes_s"] < 1_600_000, "the learner's cap is 1.5 MB/s"


@pytest.mark.skipif(sys.executable != PYTHON, reason="the libp2p extra is not installed")
def test_software_that_knows_nothing_of_p2prl_reads_its_version_and_sends_a_frame() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "p2prl_lab.foreign_clients"], capture_output=True, text=True, timeout=120, check=False
    )
    row = json.loads(done.stdout)
    assert (done.returncode, row["works"], row["frame_arrived"]) == (0, True, True), row
    assert row["p2prl"] == f"/p2prl/version/{__version__}"
