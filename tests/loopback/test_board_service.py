"""Board over real sockets: port, shutdown, a swarm's ledger, and the page in a browser."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from p2prl.clock import SystemClock
from p2prl.errors import MachineError
from p2prl.net.process.handle import NetworkHandle
from p2prl.net.process.network_config import NetworkConfig
from p2prl.net.storage.key_file import create_identity
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_chain import page_of
from p2prl.scoreboard.ledger.ledger_sources import LedgerSource
from p2prl.scoreboard.ledger.swarm_source import SwarmSource, SwarmSourceConfig
from p2prl.scoreboard.web.service import BoardServer
from p2prl.swarm import signals
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.testing.sample_ledgers import LedgerWriter, MemorySource, identity, manifest, sample_run

pytestmark = pytest.mark.loopback

SERVE = """
import sys
from pathlib import Path
from p2prl.scoreboard.ledger.run_folder_source import RunFolderSource
from p2prl.scoreboard.web.service import serve
source = RunFolderSource(Path(sys.argv[1]), Path(sys.argv[2]).read_bytes())
serve(source, host="127.0.0.1", port=0, on_ready=lambda url: print(url, flush=True))
source.close()
print("left in order", flush=True)
"""


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def wait_until(condition: Callable[[], bool], *, seconds: float, pause: threading.Event) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "timed out"
        pause.wait(0.05)


@pytest.fixture
def serving() -> Iterator[Callable[[LedgerSource], str]]:
    running: list[tuple[BoardServer, threading.Thread]] = []

    def start(source: LedgerSource) -> str:
        board, ready = BoardServer(source, host="127.0.0.1", port=0), threading.Event()
        thread = threading.Thread(target=board.serve, args=(lambda _: ready.set(),))
        thread.start()
        running.append((board, thread))
        assert ready.wait(20)
        return board.url

    yield start
    for board, thread in running:
        board.stop()
        thread.join(20)
        assert not thread.is_alive()


def test_a_taken_port_is_a_machine_error_with_a_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match=str(port)) as caught:
            BoardServer(MemorySource(LedgerWriter()), host="127.0.0.1", port=port)
    assert "--port" in caught.value.remedy


def test_ctrl_c_ends_the_board_quietly(tmp_path: Path) -> None:
    writer = sample_run(0, steps=3)
    writer.write_journal(tmp_path / "journal.db").close()
    (tmp_path / "manifest").write_bytes(writer.manifest_raw)
    command = [sys.executable, "-c", SERVE, str(tmp_path / "journal.db"), str(tmp_path / "manifest")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert get(f"{url}/api/v1/ledger/head")["height"] == len(writer.entries)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "left in order\n", "")


class _Learner:
    """The part of a learner that serves a ledger."""

    def __init__(self, folder: Path, writer: LedgerWriter) -> None:
        self.writer = writer
        create_identity(folder / "key", identity("learner"))
        self.network = NetworkHandle(
            NetworkConfig(
                key_file=folder / "key",
                run=writer.run,
                node=NodeConfig(role=Role.LEARNER),
                blob_dir=folder / "blobs",
                listen=("/ip4/127.0.0.1/tcp/0",),
                manifest=writer.manifest_raw,
            ),
            on_start=lambda network: network.send(signals.SetLedgerHeight(len(writer.entries))),
        )

    def turn(self) -> None:
        """Answer the ledger queries that have arrived."""
        for message in self.network.poll(0.05):
            if isinstance(message, signals.LedgerWanted):
                entries = page_of(self.writer.entries[message.from_height :])
                self.network.send(signals.SendLedger(message.peer, message.from_height, entries))


def test_a_board_joins_by_link_and_resumes(tmp_path: Path, serving: Callable[[LedgerSource], str]) -> None:
    writer = sample_run(0, steps=30)
    writer.now = time.time()
    head = writer.signed_head()
    learner, pause = _Learner(tmp_path / "learner", writer), threading.Event()
    create_identity(tmp_path / "board-key", identity("board"))
    try:

        def up() -> bool:
            learner.turn()
            return bool(learner.network.addresses)

        wait_until(up, seconds=30, pause=pause)
        link = JoinLink("chain-of-sums", writer.run, learner.network.addresses[:1])
        config = SwarmSourceConfig(
            link=link,
            key_file=tmp_path / "board-key",
            folder=tmp_path / "board",
            listen=("/ip4/127.0.0.1/tcp/0",),
        )
        source = SwarmSource(config, clock=SystemClock())
        try:
            url = serving(source)

            def followed() -> bool:
                learner.turn()
                return source.snapshot().unproven_entries == len(writer.entries)

            wait_until(followed, seconds=40, pause=pause)
            assert get(f"{url}/healthz")["height"] == 0, "no signed head proves them yet"
            learner.network.send(signals.Publish(head))

            def confirmed() -> bool:
                learner.turn()
                return bool(get(f"{url}/api/v1/ledger/head")["signed_height"] == len(writer.entries))

            wait_until(confirmed, seconds=20, pause=pause)
            assert get(f"{url}/healthz")["height"] == len(writer.entries)
            run = get(f"{url}/api/v1/run")
            assert run["ledger"]["head"] == writer.head.hex()
            assert run["neighbours"] == {"learner": 1}
            assert run["join_link"] == str(link)
            people = get(f"{url}/api/v1/leaderboard")["people"]
            assert sum(row["verified_tokens"] for row in people) == run["totals"]["verified_tokens"] > 0
        finally:
            source.close()
    finally:
        learner.network.close()
    again = SwarmSource(config, clock=SystemClock())  # no peer to ask: everything is on disk
    try:
        snapshot = again.snapshot()
        assert snapshot.board is not None
        assert (snapshot.board.height, snapshot.signed_height) == (len(writer.entries), len(writer.entries))
    finally:
        again.close()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium on PATH")
@pytest.mark.parametrize("width", [1200, 500])
def test_the_page_renders_and_hostile_text_stays_text(
    tmp_path: Path, serving: Callable[[LedgerSource], str], width: int
) -> None:
    hostile = "Add numbers<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    writer = sample_run(0, steps=40)
    bad = LedgerWriter(manifest(goal=hostile))
    for source, dumped in ((MemorySource(writer, join_link="p2prl://x@y"), "chain-of-sums"), (MemorySource(bad), "")):
        url = serving(source)
        dom = _chromium(tmp_path, width, "--dump-dom", url)
        assert "<title>chain-of-sums · p2prl</title>" in dom
        assert dumped in dom
        assert "<script>document" not in dom
        assert "<img" not in dom
    picture = tmp_path / "page.png"
    _chromium(tmp_path, width, f"--screenshot={picture}", serving(MemorySource(writer)))
    size, colors = _png(picture.read_bytes())
    assert size == (width, 1600)
    assert (0x1F, 0x6B, 0x58) in colors or (
        0x63,
        0xC7,
        0xA9,
    ) in colors  # the curve's color
    assert len(colors) > 50


def _chromium(folder: Path, width: int, *arguments: str) -> str:
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        f"--window-size={width},1600",
        f"--user-data-dir={folder / 'profile'}",
        *arguments,
    ]
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    return done.stdout


def _png(data: bytes) -> tuple[tuple[int, int], set[tuple[int, int, int]]]:
    """Size and colors of an 8-bit RGB picture (PNG specification, filters 0 to 4)."""
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert (depth, kind) == (8, 2)
    packed, at = b"", 8
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + length] if name == b"IDAT" else b""
        at += 12 + length
    raw, stride = zlib.decompress(packed), width * 3
    before, colors = bytearray(stride), set[tuple[int, int, int]]()
    for row in range(height):
        mode, line = raw[row * (stride + 1)], bytearray(raw[row * (stride + 1) + 1 : (row + 1) * (stride + 1)])
        for i in range(stride):
            left, up, corner = (line[i - 3], before[i], before[i - 3]) if i >= 3 else (0, before[i], 0)
            line[i] = (line[i] + _predicted(mode, left, up, corner)) & 255
        colors.update(zip(line[::3], line[1::3], line[2::3], strict=True))
        before = line
    return (width, height), colors


def _predicted(mode: int, left: int, up: int, corner: int) -> int:
    if mode < 4:
        return (0, left, up, (left + up) // 2)[mode]
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))
