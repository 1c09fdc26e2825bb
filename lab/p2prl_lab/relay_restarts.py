"""Kill the only peer that passes a swarm's groups on, again and again, and count what its volunteers lose by it.

    python -m p2prl_lab.relay_restarts --restarts 5 --away 20

A learner, a seeder and volunteers as processes over real sockets, in a network of their own in which no packet passes
between volunteers and learner: all that one says to the other goes over the seeder. It is killed, stays away, and comes
back; then every group that was sampled until then must be credited. Linux with `ip`, `unshare` and `nft`, as root or
where users may make namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from p2prl.net.storage.key_file import load_identity
from p2prl.protocol.join_link import JoinLink, parse_link
from p2prl_lab.home_networks.namespaces import own_space
from p2prl_lab.progress_lines import say
from p2prl_lab.testing.made_run import make_run
from p2prl_lab.testing.run_audit import audit_run, record_everything, recorded_steps
from p2prl_lab.testing.swarm_processes import RoleProcess, SwarmProcesses, kill_tree, rows, spools, wait_until

_INSIDE = "P2PRL_RELAY_RESTARTS"
"""Set for the process in the namespaces."""

_LEARNER, _SEEDER = "/ip4/127.0.9.1/tcp/4001", "/ip4/127.0.8.1/tcp/4002"
_CUT = """
table ip cut {
    chain input {
        type filter hook input priority 0;
        ip saddr 127.1.0.0/16 ip daddr 127.0.9.1 drop
        ip saddr 127.0.9.1 ip daddr 127.1.0.0/16 drop
    }
}
"""
_FIRST_S, _BACK_S = 240.0, 240.0
_AT_LEAST = 20
"""Groups of each volunteer that are credited before the first kill."""


class RelayedSwarm:
    """A swarm whose volunteers reach the learner over one seeder alone."""

    def __init__(self, swarm: SwarmProcesses, run: Path, volunteers: int) -> None:
        """Start everybody, and wait until every volunteer has been credited for some groups."""
        self._run = run
        homes = swarm.folder / "homes"
        self._swarm = swarm
        self._homes = [homes / f"volunteer-{number}" for number in range(volunteers)]
        self.learner = swarm.start("learner", "learn", str(run), "--updates", "0", "--listen", _LEARNER)
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text(), seconds=60, what="a link")
        self.seeder = swarm.start("seeder", "seed", link, "--listen", _SEEDER, home=homes / "seeder")
        (key,) = wait_until(lambda: list((homes / "seeder").glob("*/key.json")), seconds=60, what="the seeder's key")
        parsed = parse_link(link.strip())
        over_seeder = str(JoinLink(parsed.name, parsed.run, (f"{_SEEDER}/p2p/{load_identity(key).peer_id}",)))
        self._volunteers = [
            swarm.start(
                home.name, "join", over_seeder, "--threads", "1", "--listen", f"/ip4/127.1.{number}.1/tcp/0", home=home
            )
            for number, home in enumerate(self._homes)
        ]
        for home in self._homes:
            wait_until(lambda home=home: self._verified(home) >= _AT_LEAST, seconds=_FIRST_S, what="groups")  # type: ignore[misc]

    def restart_seeder(self, away_s: float) -> float:
        """Kill it, start it again `away_s` later; seconds from then until all groups sampled so far are settled."""
        kill_tree(self.seeder)
        threading.Event().wait(away_s)
        sampled = {digest for home in self._homes for digest in self._digests(home)}
        self._swarm.start_again(self.seeder)
        began = time.monotonic()
        wait_until(
            lambda: sampled <= self._settled(), seconds=_BACK_S, what="receipts for all groups sampled meanwhile"
        )
        return time.monotonic() - began

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

    def _settled(self) -> set[bytes]:
        return {
            digest for (digest,) in rows(self._run / "journal.db", "SELECT digest FROM groups WHERE state != 'stored'")
        }

    @staticmethod
    def _digests(home: Path) -> set[bytes]:
        return {digest for spool in spools(home) for (digest,) in rows(spool, "SELECT digest FROM groups")}

    @staticmethod
    def _verified(home: Path) -> int:
        query = "SELECT COUNT(*) FROM groups WHERE state = 'verified'"
        return sum(int(rows(spool, query)[0][0]) for spool in spools(home))


def _interrupt(role: RoleProcess) -> None:
    role.process.terminate()
    assert role.wait(60) == 130, role.log[-2000:]


def measure(folder: Path, *, volunteers: int, restarts: int, away_s: float, warm: Path | None) -> dict[str, Any]:
    """Restart the seeder so often. AssertionError where a guarantee is broken."""
    swarm = SwarmProcesses(folder, forks=True)
    with swarm.running():
        run = make_run(swarm, warm=warm)
        record_everything(run)
        relayed = RelayedSwarm(swarm, run, volunteers)
        settled_s = []
        for number in range(restarts):
            settled_s.append(round(relayed.restart_seeder(away_s), 1))
            say(f"restart {number + 1}: all groups settled {settled_s[-1]:g} s after the seeder's start")
        return {"volunteers": volunteers, "restarts": restarts, "settled_s": settled_s, **relayed.stop()}


def main() -> int:
    """Measure in a network of its own, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--volunteers", type=int, default=2)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--away", type=float, default=20.0, help="seconds that the seeder stays away")
    parser.add_argument("--warm", type=Path, help="a run folder of `p2prl init NAME` whose model to start from")
    arguments = parser.parse_args()
    if _INSIDE not in os.environ:
        program = own_space(sys.executable, "-m", "p2prl_lab.relay_restarts", *sys.argv[1:])
        return subprocess.run(program, env={**os.environ, _INSIDE: "1"}, check=False).returncode
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["nft", "-f", "-"], input=_CUT, text=True, check=True)
    with tempfile.TemporaryDirectory(prefix="relay-restarts-", ignore_cleanup_errors=True) as folder:
        report = measure(
            Path(folder),
            volunteers=arguments.volunteers,
            restarts=arguments.restarts,
            away_s=arguments.away,
            warm=arguments.warm,
        )
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
