"""A hostile learner over real sockets, and the real program as its victim: what it was told, wrote and left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from p2prl.clock import SystemClock
from p2prl.config.machine_limits import held_bytes
from p2prl.config.requirements import requirements_of
from p2prl.net.process.node_driver import NodeDriver
from p2prl.net.process.upload_budget import UploadBudget
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl_lab.testing.hostile_learner import HostileNode, HostileRun

ROLES = {"join": Role.VOLUNTEER, "validate": Role.VALIDATOR, "seed": Role.SEEDER}
"""Commands of the victims."""

_LISTEN = "/ip4/127.0.0.1/tcp/0"
_UPLOAD_BYTES_S = 50e6
_QUIET_S = 5.0
"""A victim to which nothing more is sent for so long has got what it wanted."""

_WRITTEN_UNIT = 512
"""Bytes of one block output, as the kernel counts them for a process."""


class HostileLearner:
    """A hostile run's learner, in a thread with a transport of its own."""

    def __init__(self, run: HostileRun, folder: Path) -> None:
        """Start it; `folder` takes its accounts."""
        self._run = run
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._up: Future[tuple[str, ...]] = Future()
        self._node: HostileNode | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        addresses = self._up.result(timeout=60)
        name = envelope_digest(run.sealed(run.manifest.created_ms / 1000)[0])
        self.link = str(JoinLink(run.manifest.name, name, addresses))

    @property
    def sent_bytes(self) -> int:
        """Bytes of chunks it has sent."""
        return 0 if self._node is None else self._node.sent_bytes

    def close(self) -> None:
        """Stop it and its daemon."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout=20)
        self._loop.close()

    async def _serve(self) -> None:
        clock, run, now = SystemClock(), self._run, self._run.manifest.created_ms / 1000
        try:
            transport = await HivemindTransport.start(run.key, listen=(_LISTEN,), bootstrap=())
        except BaseException as error:
            self._up.set_exception(error)
            raise
        name = envelope_digest(run.sealed(now)[0])
        config = NodeConfig(role=Role.LEARNER, relay=RelayConfig(upload_bytes_s=_UPLOAD_BYTES_S))
        rng = random.Random(1)
        self._node = node = HostileNode(run.key, name, run.store, rng, config, clock.now())
        node.play(run, now)
        budget = UploadBudget(clock, cap_bytes_s=_UPLOAD_BYTES_S, monthly_bytes=0, path=self._folder / "uploads.json")
        driver = NodeDriver(node, transport, clock, name, lambda _: None, budget=budget)
        driver.wake()
        self._up.set_result(transport.addresses)
        await self._stopping.wait()
        await driver.close()
        await transport.close()


@contextlib.contextmanager
def hostile_learner(run: HostileRun, folder: Path) -> Iterator[HostileLearner]:
    """A learner that is stopped at the end of the block."""
    learner = HostileLearner(run, folder)
    try:
        yield learner
    finally:
        learner.close()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an attack did to the machine of a victim, in bytes."""

    attack: str
    command: str
    told_bytes: int
    """Most that is written, by the introduction's figures for as many versions as the learner signed."""
    received_bytes: int
    """Chunks that the learner sent."""
    written_bytes: int
    """By all processes of the victim, as the kernel counted."""
    most_held_bytes: int
    """Most on disk at one time."""
    exit_code: int
    sentence: str
    left_behind_bytes: int
    """Of the run, on disk after the end."""
    most_memory_bytes: int
    """Resident in all its processes together, at one time."""
    seconds: float


def attack_over_sockets(
    attack: str, run: HostileRun, command: str, folder: Path, options: Sequence[str] = (), *, patience_s: float = 90.0
) -> Outcome:
    """Let the real program meet the run's learner until it refuses, or has all it wants."""
    home, log = folder / "home", folder / "log"
    with hostile_learner(run, folder) as learner, log.open("wb") as output:
        began = time.monotonic()
        victim = subprocess.Popen(
            [sys.executable, "-m", "p2prl", command, learner.link, "--home", str(home), "--listen", _LISTEN, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        most_held, most_memory, status, usage = _watch(victim.pid, learner, home, began + patience_s)
        victim.returncode = os.waitstatus_to_exitcode(status)
        sent, seconds = learner.sent_bytes, time.monotonic() - began
    lines = log.read_text(errors="replace").splitlines()
    return Outcome(
        attack=attack,
        command=command,
        told_bytes=requirements_of(run.manifest, ROLES[command]).most_written(max(1, len(run.versions))),
        received_bytes=sent,
        written_bytes=usage.ru_oublock * _WRITTEN_UNIT,
        most_held_bytes=most_held,
        exit_code=victim.returncode,
        sentence=next((line.removeprefix("p2prl: ") for line in lines if line.startswith("p2prl: ")), ""),
        left_behind_bytes=sum(held_bytes(path) for path in home.glob("*-1/*") if path.is_dir()),
        most_memory_bytes=most_memory,
        seconds=round(seconds, 1),
    )


def _watch(pid: int, learner: HostileLearner, home: Path, until: float) -> tuple[int, int, int, Any]:
    """Wait for the victim's end, and interrupt it once the learner has sent all that it wants, or after `until`."""
    most_held, most_memory, last_sent, changed_at, asked = 0, 0, 0, time.monotonic(), False
    pause = threading.Event()
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return most_held, most_memory, status, usage
        most_held, most_memory = max(most_held, held_bytes(home)), max(most_memory, _resident_bytes(pid))
        now = time.monotonic()
        if learner.sent_bytes != last_sent:
            last_sent, changed_at = learner.sent_bytes, now
        quiet = last_sent > 0 and now - changed_at > _QUIET_S and _knows_a_version(home)
        if not asked and (quiet or now > until):
            os.kill(pid, signal.SIGINT)
            asked = True
        pause.wait(0.1)


def _resident_bytes(pid: int) -> int:
    """Memory of a process and its descendants; 0 once it has ended."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
    return 0


def _knows_a_version(home: Path) -> bool:
    for path in home.glob("*-1/*/status.json"):
        with contextlib.suppress(OSError, ValueError):
            status = json.loads(path.read_text())
            return int(status.get("announced_version", status.get("version", -1))) >= 0
    return False
