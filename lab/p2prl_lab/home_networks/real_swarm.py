"""A real swarm on the lab's machines: a run of `p2prl init`, with `learn`, `join` and `seed` in their namespaces."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from p2prl.protocol.digests import DIGEST_BYTES, Digest
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.join_link import JoinLink, parse_link
from p2prl_lab.home_networks.namespaces import Machine
from p2prl_lab.home_networks.site_processes import LEARNER, LEARNER_LISTEN, RENTED_LISTEN, SiteProcesses
from p2prl_lab.testing.swarm_processes import SwarmProcesses, rows, spools, wait_until

_INIT_S, _START_S = 900.0, 600.0
_SPOOLED_FOR_GOOD = ("delivered", "verified", "rejected")
"""States that a group reaches by the learner's signature alone."""


class RealSwarm(SiteProcesses):
    """The commands that people run."""

    def __init__(
        self,
        folder: Path,
        machines: Mapping[str, Machine],
        processes: SwarmProcesses,
        made_before: Path | None,
        *,
        share: float,
    ) -> None:
        """`made_before` is a run folder to copy; None makes one. `share` is that of the time in which a home samples,
        0 for no bound."""
        super().__init__(folder, machines, processes)
        self._share = ("--share", f"{share:g}") if share else ()
        self._made_before = made_before
        self.run = folder / "runs" / "lab"

    def prepare(self) -> None:
        """Make the run, or copy one that was made before and never started."""
        self.run.parent.mkdir(parents=True)
        if self._made_before is not None:
            shutil.copytree(self._made_before, self.run)
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

    def start_waiting_seeder(self, name: str) -> tuple[str, ...]:
        """`p2prl seed` with a link that names no peer."""
        bare = JoinLink(self.run.name, Digest(envelope_digest((self.run / "run.manifest").read_bytes())), ())
        listen = [part for address in RENTED_LISTEN for part in ("--listen", address)]
        self.start(name, "seed", str(bare), *listen, "--json", home=self.home(name))
        role = self.roles[name]
        wait_until(lambda: "--via " in role.log or not role.is_alive, seconds=_START_S, what="the seeder's address")
        if not role.is_alive:
            raise SystemExit(f"the seeder ended: {role.log[-2000:]}")
        return tuple(re.findall(r"--via (\S+)", role.log))

    def start_learner(self, via: tuple[str, ...] = ()) -> None:
        """`p2prl learn`, at a fixed port on IPv4 and IPv6."""
        link = self.run / "link"
        link.unlink(missing_ok=True)
        listen = [part for address in LEARNER_LISTEN for part in ("--listen", address)]
        first = [part for address in via for part in ("--via", address)]
        self.start(LEARNER, "learn", str(self.run), "--updates", "0", *listen, *first)
        role = self.roles[LEARNER]
        wait_until(lambda: link.exists() or not role.is_alive, seconds=_START_S, what="the learner's link")
        if not link.exists():
            raise SystemExit(f"the learner ended: {role.log[-2000:]}")

    def start_worker(self, name: str, verb: str) -> None:
        """`p2prl join` or `p2prl seed`."""
        bounds = ("--threads", "1", *self._share) if verb == "join" else ()
        self.start(name, verb, (self.run / "link").read_text().strip(), *bounds, "--json", home=self.home(name))

    def versions(self) -> int:
        """Versions in the learner's journal."""
        try:
            return int(rows(self.run / "journal.db", "SELECT COUNT(*) FROM policies")[0][0])
        except sqlite3.Error:
            return 0

    def link_addresses(self) -> tuple[str, ...]:
        """Those in the run's link."""
        return parse_link((self.run / "link").read_text().strip()).bootstrap

    def group_counts(self) -> dict[str, int]:
        """`delivered` are in the learner's journal, `lost` are those a spool has signed word of that the journal
        lacks, `double` were trained on twice, `waiting` are still in a spool, `voided` were refused by the learner."""
        journal = self.run / "journal.db"
        ((voided,),) = rows(journal, "SELECT COUNT(*) FROM groups WHERE state = 'rejected'")
        stored = {bytes(digest) for (digest,) in rows(journal, "SELECT digest FROM groups")}
        batches = [bytes(digests) for (digests,) in rows(journal, "SELECT digests FROM batches")]
        trained = Counter(
            batch[at : at + DIGEST_BYTES] for batch in batches for at in range(0, len(batch), DIGEST_BYTES)
        )
        lost = waiting = 0
        for name in self.roles:
            for spool in spools(self.home(name)):
                for digest, state in rows(spool, "SELECT digest, state FROM groups"):
                    lost += state in _SPOOLED_FOR_GOOD and bytes(digest) not in stored
                    waiting += state == "generated"
        double = sum(count - 1 for count in trained.values())
        return {"delivered": len(stored), "lost": lost, "double": double, "waiting": waiting, "voided": int(voided)}
