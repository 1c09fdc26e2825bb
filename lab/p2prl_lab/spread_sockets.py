"""Spread a blob over real sockets and shaped links, with one process and libp2p daemon per peer; compare to the bound.

    python -m p2prl_lab.spread_sockets --out docs/benchmarks/spread_sockets.json      # three cases, two minutes

Half of the volunteers have 20/5 Mbit/s, half 10/2. Cases: no deaths; three of eight are killed when they have half; an
extra 20/5 peer serves corrupt chunks. Uplinks use the product's own limit; downlinks are shaped at the receiver.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from p2prl.protocol.kinds import Role
from p2prl_lab.testing.shaped_swarm import ShapedPeer, ShapedSwarm

HOMES = ((5.0, 20.0), (2.0, 10.0))
"""Upload and download, Mbit/s."""

DEMANDS = {"t95_over_bound": 1.35, "learner_copies": 3.0}


def run_case(case: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    swarm = ShapedSwarm(folder, arguments.mib << 20)
    with swarm.running():
        learner = swarm.start(
            "learner", upload_mbit=arguments.learner_mbit, download_mbit=10 * arguments.learner_mbit, role=Role.LEARNER
        )
        volunteers = [
            swarm.start(f"v{number}", upload_mbit=HOMES[number % 2][0], download_mbit=HOMES[number % 2][1])
            for number in range(arguments.volunteers)
        ]
        liars: set[str] = set()
        if case == "corrupt":
            liars.add(swarm.start("corrupt", upload_mbit=5.0, download_mbit=20.0, corrupt=True).peer)
        swarm.link_all(seconds=120)
        learner.tell(publish=arguments.mib << 20, chunk_bytes=arguments.chunk_kib << 10)
        published = learner.wait_to_say("published", seconds=60)["at"]
        doomed = volunteers[:3] if case == "killed" else []
        kill_half_way(doomed)
        survivors = [peer for peer in volunteers if peer not in doomed]
        for peer in survivors:
            peer.wait_to_say("ready", seconds=arguments.patience_s)
        ready = [peer.said("ready")[0] for peer in survivors]
        times = sorted(line["at"] - published for line in ready)
        reports = [peer.ask("report") for peer in survivors]
        bound_s = lower_bound_s(arguments, survivors, volunteers)
        banned = [line["peer"] for peer in survivors for line in peer.said("banned")]
        received = sum(report["received"] + report["wasted"] for report in reports)
        return {
            "case": case,
            "n": len(volunteers),
            "size_bytes": arguments.mib << 20,
            "lower_bound": bound_s,
            "t50": times[len(times) // 2],
            "t95": times[math.ceil(0.95 * len(times)) - 1],
            "t95_over_bound": times[math.ceil(0.95 * len(times)) - 1] / bound_s,
            "learner_copies": learner.ask("report")["sent"] / (arguments.mib << 20),
            "waste_share": sum(report["wasted"] for report in reports) / received,
            "survivors_finished": len(ready) / len(survivors),
            "intact": all(line["intact"] for line in ready),
            "bans_of_the_corrupt": sum(peer in liars for peer in banned),
            "bans_of_others": sum(peer not in liars for peer in banned),
        }


def kill_half_way(doomed: list[ShapedPeer]) -> None:
    """SIGKILL each peer as soon as it reports half of the blob."""
    waiting = list(doomed)
    while waiting:
        for peer in list(waiting):
            report = peer.ask("report")
            if report["total"] and 2 * report["held"] >= report["total"]:
                peer.kill()
                waiting.remove(peer)
            elif peer.said("ready"):
                sys.exit(f"{peer.name} finished before it could be killed; use a larger --mib")
        time.sleep(0.05)


def lower_bound_s(arguments: argparse.Namespace, survivors: list[ShapedPeer], everybody: list[ShapedPeer]) -> float:
    """max(F/u_s, F/d_min, N·F/(u_s + Σu)), counting killed peers as uplinks to the end."""
    mbit: float = (arguments.mib << 20) * 8 / 1e6
    learner: float = arguments.learner_mbit
    uplinks = learner + sum(peer.upload_mbit for peer in everybody)
    slowest = min(peer.download_mbit for peer in survivors)
    return max(mbit / learner, mbit / slowest, len(survivors) * mbit / uplinks)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--volunteers", type=int, default=8)
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--chunk-kib", type=int, default=64)
    parser.add_argument("--learner-mbit", type=float, default=10.0)
    parser.add_argument("--cases", default="calm,killed,corrupt")
    parser.add_argument("--patience-s", type=float, default=240.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = []
    for case in arguments.cases.split(","):
        with tempfile.TemporaryDirectory(prefix="p2prl-spread-") as folder:
            print(f"{case}: {arguments.volunteers} volunteers, {arguments.mib} MiB …", file=sys.stderr, flush=True)
            results.append(run_case(case, arguments, Path(folder)))
            print(json.dumps(results[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    met = all(row["survivors_finished"] == 1.0 and row["intact"] and row["bans_of_others"] == 0 for row in results)
    met &= all(row["learner_copies"] <= DEMANDS["learner_copies"] for row in results)
    met &= all(row["t95_over_bound"] <= DEMANDS["t95_over_bound"] for row in results if row["case"] == "calm")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
