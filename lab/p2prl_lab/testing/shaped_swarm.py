"""A learner and volunteers with shaped links, each a process with its own daemon, controlled by JSON lines."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of

MBIT_BYTES = 125_000.0
_CREATED_AT = 1_790_000_000.0


def run_manifest(weight_bytes: int) -> bytes:
    """The run of every shaped swarm with weights of this size, sealed by the peer named `learner`."""
    learner = identity_of("learner")
    return seal(learner, run_manifest_of(learner, weight_bytes=weight_bytes), run=bytes(32), now=_CREATED_AT)


@dataclass(slots=True)
class ShapedPeer:
    """One process. `heard` collects its output, in order."""

    name: str
    upload_mbit: float
    download_mbit: float
    process: subprocess.Popen[str]
    heard: list[dict[str, Any]] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _listener: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._listener = threading.Thread(target=self.listen, daemon=True)
        self._listener.start()

    @property
    def peer(self) -> str:
        return identity_of(self.name).peer_id

    def tell(self, **command: Any) -> None:
        """Send the process a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def said(self, what: str) -> list[dict[str, Any]]:
        """All its output lines of one kind."""
        with self._news:
            return [line for line in self.heard if line["what"] == what]

    def wait_to_say(self, what: str, *, seconds: float, after: int = 0) -> dict[str, Any]:
        """Wait for its line of one kind, skipping the first `after`; AssertionError on timeout."""
        until = time.monotonic() + seconds
        with self._news:
            while len(lines := [line for line in self.heard if line["what"] == what]) <= after:
                left = until - time.monotonic()
                assert left > 0, f"{self.name}: no {what!r} within {seconds:g} s; last output: {self.heard[-3:]}"
                self._news.wait(left)
        return lines[after]

    def ask(self, what: str) -> dict[str, Any]:
        """Request its current `report` or `roles`."""
        before = len(self.said(what))
        self.tell(**{what: True})
        return self.wait_to_say(what, seconds=60, after=before)

    def kill(self) -> None:
        """SIGKILL it and its daemon."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
        self.process.kill()
        self.process.wait()
        self._listener.join()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def listen(self) -> None:
        """Read its output until it ends; runs in a thread."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.heard.append(json.loads(line))
                self._news.notify_all()


@dataclass(slots=True)
class ShapedSwarm:
    """All processes of one run."""

    folder: Path
    weight_bytes: int
    """Size of the blob that its learner publishes."""
    peers: dict[str, ShapedPeer] = field(default_factory=dict)

    @contextlib.contextmanager
    def running(self) -> Iterator[ShapedSwarm]:
        """Kill every process at the end of the block, also after an exception."""
        try:
            yield self
        finally:
            for peer in self.peers.values():
                peer.kill()

    def start(
        self,
        name: str,
        *,
        upload_mbit: float,
        download_mbit: float,
        role: Role = Role.VOLUNTEER,
        corrupt: bool = False,
        bootstrap: str = "",
    ) -> ShapedPeer:
        """Start a peer, joining through `bootstrap` if given. The peer named `learner` is the run's learner."""
        manifest = run_manifest(self.weight_bytes)
        given = {
            "entropy": identity_of(name).entropy.hex(),
            "run_manifest": manifest.hex(),
            "run": envelope_digest(manifest).hex(),
            "role": int(role),
            "upload_bytes_s": upload_mbit * MBIT_BYTES,
            "download_bytes_s": download_mbit * MBIT_BYTES,
            "folder": str(self.folder / name),
            "corrupt": corrupt,
            "bootstrap": self.peers[bootstrap].said("up")[0]["addresses"] if bootstrap else [],
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "p2prl_lab.testing.shaped_peer", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        peer = self.peers[name] = ShapedPeer(name, upload_mbit, download_mbit, process)
        return peer

    def link_to(self, name: str) -> str:
        """The run's join link, with the addresses of one running peer."""
        manifest = run_manifest(self.weight_bytes)
        return str(JoinLink("rehearsal", envelope_digest(manifest), tuple(self.peers[name].said("up")[0]["addresses"])))

    def link_all(self, *, seconds: float) -> None:
        """Wait until every peer is up, make each dial all earlier ones, and wait until all know each other."""
        addresses: list[str] = []
        for peer in self.peers.values():
            up = peer.wait_to_say("up", seconds=seconds)
            peer.tell(connect=addresses)
            addresses.append(up["addresses"][0])
        for peer in self.peers.values():
            self._until_it_knows(peer, len(self.peers) - 1, seconds)

    def _until_it_knows(self, peer: ShapedPeer, others: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (known := sum(peer.ask("roles")["roles"].values())) < others:
            assert time.monotonic() < until, f"{peer.name} knows {known} of {others} others"
