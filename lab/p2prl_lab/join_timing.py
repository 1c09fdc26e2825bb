"""Time a first `p2prl join` on loopback: to its first text, to its first verified group, and its processor seconds.

    python -m p2prl_lab.join_timing [--runs 3] [--json]      # exits with 1 when a median misses its bound
    python -m p2prl_lab.join_timing --wheel dist/p2prl-….whl --installer pipx    # each from nothing: two commands

A learner of the preset chain4 waits in the background; each run joins it with a new home. Wall times mean little on a
machine that others keep busy, so the load is printed too; processor seconds count the worker and all that it started.
With `--wheel` the newcomer is alone with its installation: no compiler, no checkout, nothing of the learner's. A first
installation, which fills the installer's cache, is not counted. Standard input is closed: a join that asked a question
would end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from p2prl_lab.testing.clean_install import INSTALLERS, Installed, install_wheel
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, command, status_of, wait_until

BOUNDS = {"first_text_s": 5.0, "first_group_s": 30.0, "processor_s": 8.0}
"""Wanted at most, on two quiet cores."""

_PATIENCE_S = 600.0


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
    run_text_s: float
    """From the start of the process to the line with the run's goal."""
    install_s: float = 0.0
    """Of the installer's one line."""


def timed_join(swarm: SwarmProcesses, link: str, number: int, installed: Installed | None = None) -> JoinTimes:
    """Join with a new home, from an installation of its own if one is given; stop after the first verified group."""
    home = swarm.folder / f"home-{number}"
    python, fresh = sys.executable, dict[str, str]()
    if installed is not None:
        python, path = installed.python, installed.environment["PATH"]
        fresh = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1", "PATH": path}  # not this checkout, and no program
    began = time.monotonic()
    worker = swarm.start(
        f"join-{number}", "join", link, "--threads", "1", *LISTEN, home=home, python=python, variables=fresh
    )
    wait_until(lambda: worker.log, seconds=_PATIENCE_S, what="a first text")
    first_text = time.monotonic() - began
    wait_until(lambda: "  Goal " in worker.log, seconds=_PATIENCE_S, what="the run's goal")
    run_text = time.monotonic() - began
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
        run_text_s=run_text,
        install_s=0.0 if installed is None else installed.seconds,
    )


def _seconds_used(worker: RoleProcess) -> list[float]:
    """Processor seconds of each process of the worker, with those it has waited for; its own first."""
    found = []
    for process in worker.tree():
        with contextlib.suppress(psutil.Error):
            found.append(sum(process.cpu_times()[:4]))
    return found


def measure(
    runs: int, folder: Path, *, wheel: Path | None = None, installer: str = "pipx", options: Sequence[str] = ()
) -> list[JoinTimes]:
    """Time this many first joins of one run, each from a new installation of the wheel if there is one."""
    installs: Sequence[Installed | None] = [None] * runs
    if wheel is not None:
        installs = [install_wheel(wheel, folder / f"install-{n}", installer, options) for n in range(runs + 1)][1:]
    swarm = SwarmProcesses(folder / "swarm")
    made = command("init", "timed", "--in", str(folder), environment=swarm.environment(), timeout_s=_PATIENCE_S)
    if made.returncode:
        raise SystemExit(made.stderr)
    with swarm.running():
        swarm.start("learner", "learn", str(folder / "timed"), "--updates", "0", *LISTEN)
        file = folder / "timed" / "link"
        link = wait_until(lambda: file.exists() and file.read_text().strip(), seconds=_PATIENCE_S, what="a join link")
        return [timed_join(swarm, link, number, installed) for number, installed in enumerate(installs)]


def main() -> int:
    """Print each run and the medians. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--wheel", type=Path, help="install this file before each join; make wheel builds it")
    parser.add_argument("--installer", choices=INSTALLERS, default="pipx")
    parser.add_argument("--option", action="append", default=[], help="of pip or uv, for the installation")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="p2prl-timing-") as folder:
        load_before = os.getloadavg()[0]
        wheel = None if arguments.wheel is None else arguments.wheel.absolute()
        times = measure(
            arguments.runs, Path(folder), wheel=wheel, installer=arguments.installer, options=arguments.option
        )
        found = [asdict(each) for each in times]
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
