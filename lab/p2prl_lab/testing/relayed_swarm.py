"""A swarm of processes whose volunteers reach the learner over one seeder alone, which is killed and comes back.

`p2prl_lab.relay_restarts` keeps packets from passing between 127.1.0.0/16, where the volunteers are, and the learner.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from p2prl.net.storage.key_file import load_identity
from p2prl.protocol.join_link import JoinLink, parse_link
from p2prl_lab.progress_lines import say
from p2prl_lab.testing.made_run import make_run
from p2prl_lab.testing.run_audit import audit_run, record_everything, recorded_steps
from p2prl_lab.testing.swarm_processes import (
    RoleProcess,
    SwarmProcesses,
    kill_tree,
    rows,
    spools,
    status_of,
    wait_until,
)

_LEARNER, _SEEDER = "/ip4/127.0.9.1/tcp/4001", "/ip4/127.0.8.1/tcp/4002"
_FIRST_S, _BACK_S = 240.0, 240.0
_AT_LEAST = 20
"""Groups of each volunteer that are credited before the first kill."""


class Restart(NamedTuple):
    """What one restart cost."""

    sampled: int
    """Groups that the volunteers sampled while the seeder was away."""
    judged_s: float
    """From its start until the learner had judged all groups sampled before."""
    heard_s: float
    """The same until the volunteers had all the receipts."""


class RelayedSwarm:
    """A swarm whose volunteers reach the learner over one seeder alone."""

    def __init__(self, swarm: SwarmProcesses, run: Path, volunteers: int, share: float) -> None:
        """Start everybody, and wait until every volunteer has been credited for some groups.

        `share` is the share of the time that volunteers compute: flat out, models of this size sample more in seconds
        than a learner checks in many minutes.
        """
        self._run = run
        homes = swarm.folder / "homes"
        self._swarm = swarm
        self._homes = [homes / f"volunteer-{number}" for number in range(volunteers)]
        self.learner = swarm.start("learner", "learn", str(run), "--updates", "0", "--listen", _LEARNER)
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text(), seconds=60, what="a link")
        at_seeder = homes / "seeder"
        self.seeder = swarm.start("seeder", "seed", link, "--listen", _SEEDER, home=at_seeder)
        wait_until(lambda: status_of(at_seeder).get("peers", {}).get("learner"), seconds=60, what="the seeder's link")
        (key,) = at_seeder.glob("*/key.json")
        parsed = parse_link(link.strip())
        over_seeder = str(JoinLink(parsed.name, parsed.run, (f"{_SEEDER}/p2p/{load_identity(key).peer_id}",)))
        self._volunteers = [
            swarm.start(
                home.name,
                *("join", over_seeder, "--threads", "1", "--share", str(share)),
                *("--listen", f"/ip4/127.1.{number}.1/tcp/0"),
                home=home,
            )
            for number, home in enumerate(self._homes)
        ]
        for home in self._homes:
            wait_until(lambda home=home: self._verified(home) >= _AT_LEAST, seconds=_FIRST_S, what="groups")  # type: ignore[misc]

    def restart_seeder(self, away_s: float) -> Restart:
        """Kill it, start it again `away_s` later, and wait until all groups sampled so far are settled, by the journal
        and by the spools of their volunteers."""
        kill_tree(self.seeder)
        before = self._digests()
        threading.Event().wait(away_s)
        sampled = self._digests()
        self._swarm.start_again(self.seeder)
        began = time.monotonic()
        wait_until(lambda: sampled <= self._judged(), seconds=_BACK_S, what="checks of all groups sampled meanwhile")
        judged_s = time.monotonic() - began
        wait_until(lambda: sampled <= self._heard(), seconds=_BACK_S, what="receipts for all groups sampled meanwhile")
        return Restart(len(sampled - before), round(judged_s, 1), round(time.monotonic() - began, 1))

    def linked(self) -> list[dict[str, int]]:
        """The links of each volunteer, by the peers' roles."""
        return [dict(status_of(home).get("peers", {})) for home in self._homes]

    def stop(self) -> dict[str, int]:
        """Stop everybody, and return the counts of its groups after an audit, which finds lost ones."""
        for role in (*self._volunteers, self.learner, self.seeder):
            _interrupt(role)
        audit = audit_run(self._run, [path for home in self._homes for path in spools(home)], has_ended=False)
        return {
            "groups": audit.groups,
            "verified": audit.verified,
            "voided": audit.rejected,
            "expired": audit.expired,
            "updates": recorded_steps(self._run),
        }

    def _judged(self) -> set[bytes]:
        return {
            digest for (digest,) in rows(self._run / "journal.db", "SELECT digest FROM groups WHERE state != 'stored'")
        }

    def _digests(self, where: str = "1") -> set[bytes]:
        """Groups that the volunteers have sampled."""
        query = f"SELECT digest FROM groups WHERE {where}"
        return {digest for home in self._homes for spool in spools(home) for (digest,) in rows(spool, query)}

    def _heard(self) -> set[bytes]:
        """Those that have their receipts by the volunteers' own books."""
        return self._digests("state NOT IN ('generated', 'delivered')")

    @staticmethod
    def _verified(home: Path) -> int:
        query = "SELECT COUNT(*) FROM groups WHERE state = 'verified'"
        try:
            return sum(int(rows(spool, query)[0][0]) for spool in spools(home))
        except sqlite3.OperationalError:  # a spool that is just being made
            return 0


def _interrupt(role: RoleProcess) -> None:
    role.process.terminate()
    assert role.wait(60) == 130, role.log[-2000:]


def restart_relay(
    folder: Path, *, volunteers: int, share: float, restarts: int, away_s: float, warm: Path | None
) -> dict[str, Any]:
    """Restart the seeder so often. AssertionError where a guarantee is broken."""
    swarm = SwarmProcesses(folder, forks=True)
    with swarm.running():
        run = make_run(swarm, warm=warm)
        record_everything(run)
        relayed = RelayedSwarm(swarm, run, volunteers, share)
        done = []
        for number in range(restarts):
            done.append(relayed.restart_seeder(away_s))
            say(f"restart {number + 1}: {done[-1]}")
        linked = relayed.linked()
        return {"restarts": [each._asdict() for each in done], "linked": linked, **relayed.stop()}
