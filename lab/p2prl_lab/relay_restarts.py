"""Kill the only peer that passes a swarm's groups on, again and again, and count what its volunteers lose by it.

    python -m p2prl_lab.relay_restarts --restarts 5 --away 20

A learner, a seeder and volunteers as processes over real sockets, in a network of their own in which no packet passes
between two volunteers, nor between one and the learner: all that they say to each other goes over the seeder. It is
killed, stays away, and comes back; then every group that was sampled until then must be judged, and its volunteer must
hear so. Linux with `ip`, `unshare` and `nft`, as root or where users may make namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from p2prl_lab.home_networks.namespaces import own_space

_INSIDE = "P2PRL_RELAY_RESTARTS"
"""Set for the process in the namespaces."""

_CUT = """
table ip cut {
    chain input {
        type filter hook input priority 0;
        ip saddr 127.1.0.0/16 ip daddr 127.0.9.1 drop
        ip saddr 127.0.9.1 ip daddr 127.1.0.0/16 drop
        ip saddr 127.0.0.1 ip daddr { 127.0.9.1, 127.1.0.0/16 } drop
        ip saddr 127.1.0.0/16 ip daddr 127.1.0.0/16 drop
    }
}
"""


def main() -> int:
    """Measure in a network of its own, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--volunteers", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.05, help="of the time that volunteers compute")
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--away", type=float, default=20.0, help="seconds that the seeder stays away")
    parser.add_argument("--warm", type=Path, help="a run folder of `p2prl init NAME` whose model to start from")
    arguments = parser.parse_args()
    if _INSIDE not in os.environ:
        program = own_space(sys.executable, "-m", "p2prl_lab.relay_restarts", *sys.argv[1:])
        return subprocess.run(program, env={**os.environ, _INSIDE: "1"}, check=False).returncode
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["nft", "-f", "-"], input=_CUT, text=True, check=True)

    from p2prl_lab.testing.relayed_swarm import restart_relay  # not in the process outside: it loads torch

    with tempfile.TemporaryDirectory(prefix="relay-restarts-", ignore_cleanup_errors=True) as folder:
        report = restart_relay(
            Path(folder),
            volunteers=arguments.volunteers,
            share=arguments.share,
            restarts=arguments.restarts,
            away_s=arguments.away,
            warm=arguments.warm,
        )
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
