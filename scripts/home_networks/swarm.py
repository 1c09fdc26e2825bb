"""A real swarm on the lab's machines: a run of `p2prl init`, with `learn`, `join` and `seed` in their namespaces."""

from __future__ import annotations

import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2prl.protocol.digests import DIGEST_BYTES
from p2prl.testing.swarm_processes import (
    RoleProcess,
    SwarmProcesses,
    kill_tree,
    rows,
    spools,
    status_of,
    wait_until,
)
from scripts.home_networks.namespaces import Machine

LEARNER = "learner"

_LISTEN = ("--listen", "/ip4/0.0.0.0/tcp/4001", "--listen", "/ip6/::/tcp/4001")
"""The learner's. Workers get no such option: they run as a volunteer starts them, with the link alone."""

_INIT_S, _START_S, _LEAVE_S = 240.0, 120.0, 40.0
_SPOOLED_FOR_GOOD = ("delivered", "verified", "rejected")
"""States that a group reaches by the learner's signature alone."""


class HomeSwarm:
    """The roles' processes, by the name of their site."""

    def __init__(self, folder: Path, machines: Mapping[str, Machine], processes: SwarmProcesses) -> None:
        self._folder = folder
        self._machines = machines
        self._processes = processes
        self.run = folder / "runs" / "lab"
        self.roles: dict[str, RoleProcess] = {}

    def make_run(self, made_before: Path | None) -> None:
        """Make the run, or copy one that was made before and never started."""
        self.run.parent.mkdir(parents=True)
        if made_before is not None:
            shutil.copytree(made_before, self.run)
            return
        made = subprocess.run(
            [sys.executable, "-m", "p2prl", "init", self.run.name, "--preset", "chain4", "--json"],
            cwd=self._folder,
            env=self._processes.environment(),
            timeout=_INIT_S,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise SystemExit(f"p2prl init failed: {made.stderr[-2000:]}")

    def start_learner(self) -> None:
        """Start the learner, or start it again, and wait for its link."""
        link = self.run / "link"
        link.unlink(missing_ok=True)
        self._start(LEARNER, "learn", str(self.run), "--updates", "0", *_LISTEN)
        wait_until(
            lambda: link.exists() or not self.roles[LEARNER].is_alive, seconds=_START_S, what="the learner's link"
        )
        if not link.exists():
            raise SystemExit(f"the learner ended: {self.roles[LEARNER].log[-2000:]}")

    def start_worker(self, name: str, verb: str) -> None:
        """Start `p2prl join` or `p2prl seed` with the link alone."""
        threads = ("--threads", "1") if verb == "join" else ()
        self._start(name, verb, (self.run / "link").read_text().strip(), *threads, "--json", home=self._home(name))

    def kill(self, name: str) -> None:
        """SIGKILL a role, its network process and its daemon."""
        kill_tree(self.roles[name])

    def status(self, name: str) -> dict[str, Any]:
        """The newest status of a worker; empty before the first."""
        return status_of(self._home(name))

    def has_learner(self, name: str) -> bool:
        """Whether a worker has a link with the learner, by its own status, of now."""
        status = self.status(name)
        return bool(status.get("peers", {}).get("learner")) and time.time() - float(status.get("time", 0.0)) < 5.0

    def stop(self, names: list[str]) -> None:
        """Ctrl-C, and SIGKILL for those that stay too long."""
        for name in names:
            if self.roles[name].is_alive:
                self.roles[name].process.send_signal(signal.SIGINT)
        until = time.monotonic() + _LEAVE_S
        for name in names:
            try:
                self.roles[name].process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill(name)

    def group_counts(self) -> dict[str, int]:
        """What became of the groups, from the files of stopped roles: `delivered` are in the learner's journal,
        `lost` are those a spool has signed word of that the journal lacks, `double` were trained on twice, `waiting`
        are still in a spool."""
        journal = self.run / "journal.db"
        stored = {bytes(digest) for (digest,) in rows(journal, "SELECT digest FROM groups")}
        batches = [bytes(digests) for (digests,) in rows(journal, "SELECT digests FROM batches")]
        trained = Counter(
            batch[at : at + DIGEST_BYTES] for batch in batches for at in range(0, len(batch), DIGEST_BYTES)
        )
        lost = waiting = 0
        for name in self.roles:
            for spool in spools(self._home(name)):
                for digest, state in rows(spool, "SELECT digest, state FROM groups"):
                    lost += state in _SPOOLED_FOR_GOOD and bytes(digest) not in stored
                    waiting += state == "generated"
        return {
            "delivered": len(stored),
            "lost": lost,
            "double": sum(count - 1 for count in trained.values()),
            "waiting": waiting,
        }

    def versions(self) -> int:
        """Versions published so far."""
        try:
            return int(rows(self.run / "journal.db", "SELECT COUNT(*) FROM policies")[0][0])
        except sqlite3.Error:
            return 0

    def _home(self, name: str) -> Path:
        return self._folder / "homes" / name

    def _start(self, name: str, *arguments: str, home: Path | None = None) -> None:
        known = self.roles.get(name)
        if known is not None:
            self._processes.start_again(known)
            return
        python = self._folder / f"python-{name}"
        inside = self._machines[name].inside(sys.executable)
        python.write_text(f'#!/bin/sh\nexec {shlex.join(inside)} "$@"\n')
        python.chmod(0o755)
        self.roles[name] = self._processes.start(name, *arguments, home=home, python=str(python))
