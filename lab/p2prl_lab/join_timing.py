"""Time a first `p2prl join` on loopback: to its first text, to its first verified group, and its processor seconds.

    python -m p2prl_lab.join_timing [--runs 3] [--json]      # exits with 1 when a median misses its bound
    python -m p2prl_lab.join_timing --fresh --runs 2         # each from an empty environment: venv, pip install, join

A learner of the preset chain4 waits in the background; each run joins it with a new home. Wall times mean little on a
machine that others keep busy, so the load is printed too; processor seconds count the worker and all that it started.
With `--fresh` a first installation, which fills pip's cache of wheels, is not counted. Standard input is closed: a join
that asked a question would end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, command, status_of, wait_until

BOUNDS = {"first_text_s": 5.0, "first_group_s": 30.0, "processor_s": 8.0}
"""Wanted at most, on two quiet cores."""

_PATIENCE_S = 600.0
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinTimes:
    """One first join."""

    first_text_s: float
    """From the start of the process to its first line."""
    first_group_s: float
    """From the start of the process to the first group that the learner has verified."""
    processor_s: float
    """Of the worker and its processes, until that group."""
    main_s: float
    """Of the worker alone: imports, engine and sampling."""
    install_s: float = 0.0
    """Of making the environment and installing into it, where it is a fresh one."""


def install(environment: Path) -> tuple[str, float]:
    """Make a virtual environment with this checkout in it. Returns its interpreter and the seconds it took."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    wanted = ["-c", str(_ROOT / "constraints.txt"), str(_ROOT)]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True, stdin=subprocess.DEVNULL)
    return python, time.monotonic() - began


def timed_join(
    swarm: SwarmProcesses, link: str, number: int, *, python: str = sys.executable, install_s: float = 0.0
) -> JoinTimes:
    """Join with a new home, and stop after the first verified group."""
    home = swarm.folder / f"home-{number}"
    fresh = {} if python == sys.executable else {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}  # not this checkout
    began = time.monotonic()
    worker = swarm.start(
        f"join-{number}", "join", link, "--threads", "1", *LISTEN, home=home, python=python, variables=fresh
    )
    wait_until(lambda: worker.log, seconds=_PATIENCE_S, what="a first text")
    first_text = time.monotonic() - began
    wait_until(
        lambda: status_of(home).get("groups", {}).get("verified", 0), seconds=_PATIENCE_S, what="a verified group"
    )
    first_group, used = time.monotonic() - began, _seconds_used(worker)
    worker.process.terminate()
    worker.wait(_PATIENCE_S)
    return JoinTimes(
        first_text_s=first_text,
        first_group_s=first_group,
        processor_s=sum(used),
        main_s=used[0],
        install_s=install_s,
    )


def _seconds_used(worker: RoleProcess) -> list[float]:
    """Processor seconds of each process of the worker, with those it has waited for; its own first."""
    found = []
    for process in worker.tree():
        with contextlib.suppress(psutil.Error):
            found.append(sum(process.cpu_times()[:4]))
    return found


def measure(runs: int, folder: Path, *, fresh: bool = False) -> list[JoinTimes]:
    """Time this many first joins of one run; `fresh`: each in an environment that was empty."""
    environments = [install(folder / f"environment-{number}") for number in range((runs + 1) * fresh)][1:]
    swarm = SwarmProcesses(folder / "swarm")
    made = command("init", "timed", "--in", str(folder), environment=swarm.environment(), timeout_s=_PATIENCE_S)
    if made.returncode:
        raise SystemExit(made.stderr)
    with swarm.running():
        swarm.start("learner", "learn", str(folder / "timed"), "--updates", "0", *LISTEN)
        file = folder / "timed" / "link"
        link = wait_until(lambda: file.exists() and file.read_text().strip(), seconds=_PATIENCE_S, what="a join link")
        if not fresh:
            return [timed_join(swarm, link, number) for number in range(runs)]
        return [
            timed_join(swarm, link, number, python=python, install_s=seconds)
            for number, (python, seconds) in enumerate(environments)
        ]


def main() -> int:
    """Print each run and the medians. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--fresh", action="store_true", help="install into a new virtual environment before each join")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="p2prl-timing-") as folder:
        load_before = os.getloadavg()[0]
        found = [asdict(times) for times in measure(arguments.runs, Path(folder), fresh=arguments.fresh)]
    medians = {name: statistics.median(row[name] for row in found) for name in found[0]}
    missed = [name for name, most in BOUNDS.items() if medians[name] > most]
    if arguments.json:
        document = {"rows": found, "medians": medians, "missed": missed, "load_before": load_before}
        print(json.dumps(document, sort_keys=True))
    else:
        for row in [*found, medians]:
            print("  ".join(f"{name} {value:6.2f}" for name, value in row.items()), "(median)" * (row is medians))
        print(f"load before {load_before:.1f} on {os.cpu_count()} processors; above its bound: {missed or 'nothing'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
