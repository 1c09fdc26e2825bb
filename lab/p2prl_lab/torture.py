"""Kill the roles of one run at random times, or cut a volunteer off, and check the run's guarantees.

    python -m p2prl_lab.torture --kills 20 --seed 0
    python -m p2prl_lab.torture --cut 60
    python -m p2prl_lab.torture --owner --roles volunteers --kills 200
    python -m p2prl_lab.torture --storm --roles all --kills 50 --updates 500
    python -m p2prl_lab.torture --roles volunteers --kills 50 --naps 50 --nap 40 --volunteers 6 --updates 60

Prints its actions; exits 1 and keeps the folder when a guarantee is broken.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from p2prl_lab.progress_lines import say
from p2prl_lab.testing.crash_plan import CrashPlan
from p2prl_lab.testing.crash_run import CrashRun
from p2prl_lab.testing.disconnect_run import DisconnectPlan, disconnect_volunteer
from p2prl_lab.testing.made_run import make_run
from p2prl_lab.testing.swarm_processes import SwarmProcesses

_REWARD_WANTED = 0.80

_STORM_KEYS = 24


def main() -> int:
    """Run one test and print its report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="kill -9s of random roles")
    parser.add_argument("--naps", type=int, default=0, help="times that a volunteer's machine sleeps, beside the kills")
    parser.add_argument("--nap", type=float, default=60.0, help="seconds that it sleeps")
    parser.add_argument("--cut", type=float, default=0.0, help="seconds to cut one volunteer off, instead of killing")
    parser.add_argument("--storm", action="store_true", help="floods of strangers go on all the time")
    parser.add_argument(
        "--roles",
        choices=("most", "all", "volunteers"),
        default="most",
        help="all: a seeder too, and each as often; volunteers: these alone",
    )
    parser.add_argument("--owner", action="store_true", help="volunteers are paused and limited all the time")
    parser.add_argument("--volunteers", type=int, default=3)
    parser.add_argument("--updates", type=int, default=300, help="learner updates of the run")
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        help="multiplies limits on waiting, beyond what a busy machine gets by itself",
    )
    parser.add_argument("--seed", type=int, default=0, help="order, moments and kinds of the kills")
    parser.add_argument("--warm", type=Path, help="a run folder of `p2prl init NAME` whose model to start from")
    parser.add_argument("--dead-band", type=int, default=0, help="dead_band_ulp of the run")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    swarm = SwarmProcesses(folder, forks=True)
    try:
        with swarm.running():
            document = _run_test(swarm, arguments)
    except AssertionError as error:
        say(f"BROKEN: {error}\nKept in {folder}")
        return 1
    print(json.dumps(document, indent=2, sort_keys=True))
    shutil.rmtree(folder)
    return 0


def _run_test(swarm: SwarmProcesses, arguments: argparse.Namespace) -> dict[str, Any]:
    run = make_run(swarm, warm=arguments.warm, dead_band_ulp=arguments.dead_band, patience=arguments.patience)
    if arguments.cut:
        return dataclasses.asdict(disconnect_volunteer(swarm, run, DisconnectPlan(cut_s=arguments.cut), say=say))
    plan = CrashPlan(
        kills=arguments.kills,
        updates=arguments.updates,
        seed=arguments.seed,
        volunteers=arguments.volunteers,
        owner=arguments.owner,
        naps=arguments.naps,
        nap_s=arguments.nap,
        finish_s=max(300.0, 2.0 * arguments.updates),
        patience=arguments.patience,
        every_role=arguments.roles == "all",
        volunteers_only=arguments.roles == "volunteers",
        storm_keys=_STORM_KEYS if arguments.storm else 0,
    )
    report = CrashRun(swarm, run, plan, say=say).execute()
    audit = report.audit
    assert audit is not None
    assert arguments.storm or not audit.rejected, f"{audit.rejected} groups of honest volunteers were rejected"
    assert report.reward >= _REWARD_WANTED, f"the final reward is {report.reward:.3f}"
    return report.summary()


if __name__ == "__main__":
    sys.exit(main())
