"""Whatever a person, a disk or a stranger gives the real program: one sentence, the documented code, nothing lost."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from p2prl.cli.reading import read_status
from p2prl.config.presets import preset_by_name
from p2prl.config.run_settings import init_run
from p2prl.errors import TransportError
from p2prl.learner.run_plan import RunPlan
from p2prl.models.tiny_models import tiny_model
from p2prl.net.storage.key_file import create_identity
from p2prl.net.transports import framing
from p2prl.net.transports.hivemind.daemon import DaemonConfig
from p2prl.net.transports.hivemind.transport import HivemindOptions, HivemindTransport
from p2prl.protocol import frames, limits
from p2prl.protocol.digests import digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import JoinLink, parse_link
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.link_messages import Hello, Push

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(300)]

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "P2PRL_HOME": "/nonexistent/p2prl"}
LISTEN = ("--listen", "/ip4/127.0.0.1/tcp/0")
SETTINGS = preset_by_name("chain4").settings_text()


def p2prl(*arguments: object, file_limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program to its end; `file_limit` is the largest file it may write, bytes."""
    return subprocess.run(
        [sys.executable, "-m", "p2prl", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
        preexec_fn=None if file_limit is None else limiter(file_limit),
    )


def limiter(size_bytes: int) -> Callable[[], None]:
    """A disk that is full for any file beyond a size."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


def refused(result: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    """One sentence with these words, a remedy, the code, no data and no traceback."""
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    *_, sentence, remedy = result.stderr.splitlines()
    assert sentence.startswith("p2prl: ")
    assert words in sentence
    assert remedy.startswith("       ")
    assert remedy.strip()


def make_run(directory: Path) -> Path:
    made = tiny_model(seed=3)
    made.model.save_pretrained(directory / "model")
    made.tokenizer.save_pretrained(directory / "model")
    plan = RunPlan(name="bad-input", goal="test", task="chain4", model=str(directory / "model"))
    init_run(directory / "run", plan, settings=SETTINGS, on_progress=lambda stage, share: None)
    return directory / "run"


def eventually(condition: Callable[[], bool], *, seconds: float = 100.0) -> None:
    until, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        pause.wait(0.05)


def meddling(folder: Path, code: str) -> Path:
    """A folder whose `sitecustomize` runs `code` in every Python process, before anything else does."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return folder


def with_modules_of(folder: Path) -> dict[str, str]:
    paths = [str(folder), *filter(None, [ENVIRONMENT.get("PYTHONPATH")])]
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}


class Running:
    """A role in a process of its own."""

    def __init__(
        self, log: Path, *arguments: object, file_limit: int | None = None, meddled: Path | None = None
    ) -> None:
        self.log = log
        self._file = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "p2prl", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT if meddled is None else with_modules_of(meddled),
            preexec_fn=None if file_limit is None else limiter(file_limit),
        )

    def said(self) -> str:
        return self.log.read_text()

    def stop(self) -> int:
        """Ctrl-C, then the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=40)
        self._file.close()
        return code


@contextmanager
def running(
    log: Path, *arguments: object, file_limit: int | None = None, meddled: Path | None = None
) -> Iterator[Running]:
    role = Running(log, *arguments, file_limit=file_limit, meddled=meddled)
    try:
        yield role
    finally:
        role.stop()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Running]]:
    """A learner that goes on until the tests of this file are done."""
    directory = tmp_path_factory.mktemp("live")
    folder = make_run(directory)
    with running(directory / "learner.log", "learn", folder, "--updates", 0, *LISTEN) as learner:
        eventually((folder / "link").exists)
        yield folder, learner
        assert learner.process.poll() is None, learner.said()
        assert learner.stop() == 130
        assert "Traceback" not in learner.said()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def policies(run: Path) -> list[tuple[int, int]]:
    """(version, step) of what a learner has published."""
    with closing(sqlite3.connect(f"file:{run / 'journal.db'}?mode=ro", uri=True)) as journal:
        return list(journal.execute("SELECT version, step FROM policies ORDER BY version"))


def spool_states(home: Path) -> dict[str, int]:
    (path,) = home.glob("seat-1/*/spool.db")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as spool:
        return dict(spool.execute("SELECT state, COUNT(*) FROM groups GROUP BY state"))


def volunteer_status(home: Path) -> dict[str, Any]:
    return next((read_status(path) for path in home.glob("seat-1/*/status.json")), {})


# --- what a person types ------------------------------------------------------------------------------------------


def test_a_link_that_was_cut_off(tmp_path: Path) -> None:
    refused(p2prl("join", "p2prl://chain@abcdef", "--home", tmp_path / "home"), 3, "cut off")
    assert not (tmp_path / "home").exists()


def test_nobody_answers_at_the_link(tmp_path: Path) -> None:
    stranger = Identity(bytes(range(16))).peer_id
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    link = JoinLink("gone", digest("p2prl/test-run", b""), (f"/ip4/127.0.0.1/tcp/{port}/p2p/{stranger}",))
    refused(p2prl("join", link, "--home", tmp_path, *LISTEN), 7, "no peer of the run answered")
    shown = json.loads(p2prl("key", "show", "--home", tmp_path, "--json").stdout)
    assert list(shown["seats"]) == ["seat-1"], "the key stays for the next try"


def test_a_typo_in_run_toml_and_a_key_open_to_others(run: Path) -> None:
    toml = run / "run.toml"
    toml.write_text(toml.read_text().replace("checkpoint_every", "checkpoint_evry"))
    result = p2prl("learn", run)
    refused(result, 3, "unknown key 'checkpoint_evry'")
    assert "Did you mean 'checkpoint_every'?" in result.stderr
    toml.write_text(SETTINGS)
    (run / "key.json").chmod(0o644)
    result = p2prl("learn", run)
    refused(result, 6, "open to other users")
    assert f"chmod 600 {run / 'key.json'}" in result.stderr


def test_a_port_somebody_else_has(run: Path, taken_port: int) -> None:
    refused(p2prl("learn", run, "--listen", f"/ip4/127.0.0.1/tcp/{taken_port}"), 4, "another program already uses")


def test_a_volunteer_that_starts_again_with_nobody_in_reach_samples_on(
    live: tuple[Path, Running], tmp_path: Path
) -> None:
    folder, _ = live
    link, home = parse_link((folder / "link").read_text()), tmp_path / "home"
    with running(tmp_path / "first.log", "join", link, "--home", home, *LISTEN, "--threads", 1) as first:
        eventually(lambda: sum(volunteer_status(home).get("groups", {}).values()) > 0)
        assert first.stop() == 130
    before = sum(spool_states(home).values())
    stranger = Identity(bytes(range(16))).peer_id
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"/ip4/127.0.0.1/tcp/{free.getsockname()[1]}/p2p/{stranger}"
    alone = JoinLink(link.name, link.run, (nobody,))
    with running(tmp_path / "again.log", "join", alone, "--home", home, *LISTEN, "--threads", 1) as again:
        eventually(lambda: sum(spool_states(home).values()) > before)
        assert again.stop() == 130
        assert "going on alone and trying again" in again.said()
        assert "Traceback" not in again.said()


# --- a full disk --------------------------------------------------------------------------------------------------


def test_a_full_disk_under_the_learner(run: Path, tmp_path: Path) -> None:
    result = p2prl("learn", run, "--updates", 1, *LISTEN, file_limit=100_000)  # weights need 236 kB
    refused(result, 4, "cannot write in")
    assert policies(run) == []
    with running(tmp_path / "again.log", "learn", run, "--updates", 1, *LISTEN) as again:
        eventually(lambda: policies(run) == [(0, 0)])
        assert again.stop() == 130
        assert "Traceback" not in again.said()


def test_a_full_disk_under_a_volunteer_loses_no_group(live: tuple[Path, Running], tmp_path: Path) -> None:
    folder, _ = live
    link, home = (folder / "link").read_text().strip(), tmp_path / "home"
    result = p2prl("join", link, "--home", home, *LISTEN, "--threads", 1, "--slots", 2, file_limit=300_000)
    refused(result, 4, "the spool cannot be written")
    before = spool_states(home)
    finished = sum(before.values())
    assert finished > 0
    with running(tmp_path / "again.log", "join", link, "--home", home, *LISTEN, "--threads", 1) as again:
        eventually(lambda: volunteer_status(home).get("groups", {}).get("verified", 0) >= finished)
        assert again.stop() == 130
    states = spool_states(home)
    assert states.get("rejected", 0) == 0
    assert sum(states.values()) > finished


# --- strangers ----------------------------------------------------------------------------------------------------


def test_a_learner_outlives_garbage(live: tuple[Path, Running]) -> None:
    folder, learner = live
    link = parse_link((folder / "link").read_text())
    address = next(a for a in link.bootstrap if "/127.0.0.1/" in a)
    said_before = len(learner.said().splitlines())
    rogue = Identity(os.urandom(16))
    forged = bytearray(seal(rogue, LedgerHead(1, bytes(32), 1, True), run=link.run, now=time.time()))
    forged[-1] ^= 1
    garbage = [b"\x00", os.urandom(200), b"\xff" * 4096, frames.pack(Push(bytes(forged)))]

    async def attack() -> None:
        options = HivemindOptions(daemon=DaemonConfig(nat_port_map=False, auto_nat=False))
        transport = await HivemindTransport.start(
            rogue, listen=("/ip4/127.0.0.1/tcp/0",), bootstrap=[address], options=options
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


def test_a_frame_longer_than_any_may_be_ends_its_stream_and_nothing_else(live: tuple[Path, Running]) -> None:
    folder, learner = live
    link = parse_link((folder / "link").read_text())
    address = next(a for a in link.bootstrap if "/127.0.0.1/" in a)
    hello = Hello(limits.WIRE_VERSION, link.run, int(Role.BOARD), int(time.time() * 1000), -1, 0)

    async def attack() -> bytes:
        options = HivemindOptions(daemon=DaemonConfig(nat_port_map=False, auto_nat=False))
        transport = await HivemindTransport.start(
            Identity(os.urandom(16)), listen=("/ip4/127.0.0.1/tcp/0",), bootstrap=[address], options=options
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


def test_a_clock_that_is_minutes_ahead_is_told_and_nothing_is_lost(live: tuple[Path, Running], tmp_path: Path) -> None:
    folder, _ = live
    link, home = (folder / "link").read_text().strip(), tmp_path / "home"
    fast = meddling(tmp_path / "fast", CLOCK_AHEAD)
    log = tmp_path / "fast.log"
    with running(log, "join", link, "--home", home, *LISTEN, "--threads", 1, "--slots", 1, meddled=fast) as role:
        eventually(lambda: "this machine's clock is" in role.said())
        (told,) = [line for line in role.said().splitlines() if "clock is" in line]
        assert "300 s ahead of its peers'" in told
        assert "automatic time" in told
        eventually(lambda: sum(volunteer_status(home).get("groups", {}).values()) > 0)
        assert role.stop() == 130
        assert "Traceback" not in role.said()
    states = spool_states(home)
    assert set(states) == {"generated"}, "refused as too early, and kept"
    with running(tmp_path / "right.log", "join", link, "--home", home, *LISTEN, "--threads", 1) as role:
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


def test_weights_from_a_liar_are_refused_and_fetched_elsewhere(live: tuple[Path, Running], tmp_path: Path) -> None:
    folder, _ = live
    link = parse_link((folder / "link").read_text())
    poison = meddling(tmp_path / "poison", POISONED_CHUNKS)
    liars_home, home = tmp_path / "liar", tmp_path / "home"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"/ip4/127.0.0.1/tcp/{free.getsockname()[1]}"
    arguments = ("join", link, "--home", liars_home, "--listen", at, "--threads", 1)
    with running(tmp_path / "liar.log", *arguments, meddled=poison) as liar:
        eventually(lambda: sum(volunteer_status(liars_home).get("groups", {}).values()) > 0)
        shown = json.loads(p2prl("key", "show", "--home", liars_home, "--json").stdout)
        name = shown["seats"]["seat-1"]
        both = JoinLink(link.name, link.run, (*link.bootstrap, f"{at}/p2p/{name}"))
        with running(tmp_path / "victim.log", "join", both, "--home", home, *LISTEN, "--threads", 1) as victim:
            eventually(lambda: f"ignoring peer {name[-8:]}" in victim.said())
            eventually(lambda: volunteer_status(home).get("groups", {}).get("verified", 0) > 0)
            assert victim.stop() == 130
            assert "Traceback" not in victim.said()
        assert liar.process.poll() is None


def test_a_volunteer_leaves_a_run_that_speaks_a_newer_version(tmp_path: Path) -> None:
    key, run_name = Identity(os.urandom(16)), digest("p2prl/test-run", b"newer")
    create_identity(tmp_path / "newer.json", key)
    peer = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("newer_peer.py")),
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
        result = p2prl("join", link, "--home", tmp_path / "home", *LISTEN)
        refused(result, 5, f"speak wire version {limits.WIRE_VERSION + 1}")
        assert "pip install --upgrade p2prl" in result.stderr
    finally:
        peer.kill()
        peer.communicate()
