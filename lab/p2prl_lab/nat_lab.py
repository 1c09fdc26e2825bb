"""Run a real swarm behind real home routers, in namespaces of this machine, and print one JSON object.

    python -m p2prl_lab.nat_lab --json                                        # six homes, two public volunteers
    python -m p2prl_lab.nat_lab --homes preserving,symmetric --public 1 --samplers 1 --disturb learner-restart
    python -m p2prl_lab.nat_lab --case network --weights-mb 4 --json          # network processes alone, random weights
    python -m p2prl_lab.nat_lab --case churn --samplers 3 --share 0.3 --json  # homes come and go for an hour
    python -m p2prl_lab.nat_lab --case goodput --json                         # weights beside plain TCP, by delay
    python -m p2prl_lab.nat_lab --case meeting --json                         # no swarm: do two homes meet? (10 s)

Linux with nftables, `ip`, `unshare`, `nsenter` and /dev/net/tun; as root, or where users may make namespaces. Where
that is not permitted it prints `permitted: false` with the reason, and exits 0. Everything it makes ends with it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from p2prl_lab.home_networks.goodput import goodput_report
from p2prl_lab.home_networks.lab import run_lab
from p2prl_lab.home_networks.lab_config import DISTURBANCES, LabConfig
from p2prl_lab.home_networks.meeting import meeting_report
from p2prl_lab.home_networks.namespaces import own_space, refusal
from p2prl_lab.home_networks.sites import KINDS, USUAL_KINDS, LineSpeed

_INSIDE = "P2PRL_NAT_LAB_FOLDER"
"""Set for the process in the namespaces: the folder of the lab."""

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the lab. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start without it
    try:
        return _run(_arguments())
    except KeyboardInterrupt:
        return 130


def _run(arguments: argparse.Namespace) -> int:
    inside = os.environ.get(_INSIDE)
    if inside:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        report = _report(arguments, Path(inside))
        (Path(inside) / "report.json").write_text(json.dumps(report))
        return 0
    reason = refusal()
    if reason:
        _show({"permitted": False, "reason": reason}, as_json=arguments.json)
        return 0
    with tempfile.TemporaryDirectory(prefix="nat-lab-", ignore_cleanup_errors=True) as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        code = _run_inside(folder)
        if code:
            return code
        report = json.loads((folder / "report.json").read_text())
    _show({"permitted": True, **report}, as_json=arguments.json)
    return 0


def _run_inside(folder: Path) -> int:
    """Run this program again in namespaces of its own; they end with it, and with us."""
    process = subprocess.Popen(
        own_space(sys.executable, "-m", "p2prl_lab.nat_lab", *sys.argv[1:]),
        env={**os.environ, _INSIDE: str(folder.resolve())},
        preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        start_new_session=True,
    )
    try:
        return process.wait()
    finally:
        process.kill()
        process.wait()


def _report(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    if arguments.case == "meeting":
        return meeting_report(arguments.seed)
    if arguments.case == "goodput":
        return goodput_report(
            folder,
            round_trips_ms=tuple(float(text) for text in arguments.round_trips_ms.split(",")),
            mbit=arguments.up_mbit,
            loss=arguments.loss,
            size_bytes=int(arguments.weights_mb * 1e6) // 4 * 4,
            versions=arguments.versions,
            seed=arguments.seed,
        )
    return run_lab(_config(arguments), folder)


def _config(arguments: argparse.Namespace) -> LabConfig:
    return LabConfig(
        homes=tuple(filter(None, arguments.homes.split(","))),
        learner=arguments.learner,
        public=arguments.public,
        samplers=arguments.samplers,
        speed=LineSpeed(
            up_mbit=arguments.up_mbit,
            down_mbit=arguments.down_mbit,
            delay_s=arguments.delay_ms / 1000,
            loss=arguments.loss,
        ),
        join_s=arguments.join_s,
        leave_early=arguments.leave_early,
        steady_s=arguments.steady_s,
        patience_s=arguments.patience_s,
        disturb=() if arguments.case == "churn" else tuple(filter(None, arguments.disturb.split(","))),
        away_s=arguments.away_s,
        churn_s=arguments.churn_s if arguments.case == "churn" else 0.0,
        share=arguments.share,
        run=arguments.run,
        weight_bytes=int(arguments.weights_mb * 1e6) // 4 * 4 if arguments.case == "network" else 0,
        period_s=arguments.period_s,
        home_transport=arguments.home_transport,
        seed=arguments.seed,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=("swarm", "network", "churn", "meeting", "goodput"), default="swarm")
    parser.add_argument("--homes", default=",".join(USUAL_KINDS), help=f"kinds, of {', '.join(KINDS)}")
    parser.add_argument("--learner", choices=("public", *KINDS), default="public", help="kind of the learner's site")
    parser.add_argument("--public", type=int, default=2, help="public volunteers beside the learner")
    parser.add_argument("--samplers", type=int, default=99, help="homes that sample; the others only seed")
    parser.add_argument("--share", type=float, default=0.0, help="of the time in which a home samples; 0: no bound")
    parser.add_argument("--up-mbit", type=float, default=20.0)
    parser.add_argument("--down-mbit", type=float, default=50.0)
    parser.add_argument("--delay-ms", type=float, default=10.0, help="one way, from a home to the core")
    parser.add_argument("--loss", type=float, default=0.0, help="share of packets lost on each line")
    parser.add_argument("--join-s", type=float, default=90.0)
    parser.add_argument("--leave-early", action="store_true", help="do not wait once all have joined and met")
    parser.add_argument("--steady-s", type=float, default=60.0)
    parser.add_argument("--patience-s", type=float, default=180.0)
    parser.add_argument("--disturb", default="learner-restart", help=f"of {', '.join(DISTURBANCES)}; in this order")
    parser.add_argument("--away-s", type=float, default=600.0, help="absence of the learner (learner-away)")
    parser.add_argument("--churn-s", type=float, default=3600.0, help="how long homes come and go (--case churn)")
    parser.add_argument("--weights-mb", type=float, default=4.0, help="random weights of each version (--case network)")
    parser.add_argument("--period-s", type=float, default=10.0, help="time between versions (--case network)")
    parser.add_argument("--home-transport", default="hivemind", help="of the homes (--case network)")
    parser.add_argument("--round-trips-ms", default="0,50,150", help="of the line (--case goodput)")
    parser.add_argument("--versions", type=int, default=3, help="timed downloads per line (--case goodput)")
    parser.add_argument("--run", type=Path, help="a run folder of `p2prl init` to copy, instead of making one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep the run folder, homes and logs here")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    arguments = parser.parse_args()
    unknown = set(filter(None, arguments.homes.split(","))).difference(KINDS)
    unknown |= set(filter(None, arguments.disturb.split(","))).difference(DISTURBANCES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return arguments


def _show(report: dict[str, Any], *, as_json: bool) -> None:
    print(json.dumps(report, indent=None if as_json else 1), flush=True)


if __name__ == "__main__":
    sys.exit(main())
