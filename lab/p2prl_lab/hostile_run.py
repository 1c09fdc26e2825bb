"""Join hostile runs with the real program and print what each did to this machine, as JSON rows.

    python -m p2prl_lab.hostile_run
    python -m p2prl_lab.hostile_run --commands seed,join --attacks oversized_weights,larger_config

Each run's learner is a real peer that signs and serves anything: weights far larger than the model, more
patches than were told, patches that decode to more. Exits 1 when a victim wrote more than 1.05 times what its
introduction told, held more than `--disk-gb` allowed, did not refuse what a signature proves, or left something behind.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

from p2prl.clock import SystemClock
from p2prl.protocol.identity import Identity
from p2prl_lab.testing.hostile_runs import ATTACKS, NEEDS_MODEL, REFUSED, hostile_run
from p2prl_lab.testing.hostile_sockets import ROLES, Outcome, attack_over_sockets

_WEIGHT_BYTES = 8_000_000
_DISK_GB = 0.4
_WRITTEN_WANTED = 1.05
_REFUSED_CODE, _TOO_LARGE_CODE, _INTERRUPTED = 10, 3, 130
_TOO_LARGE = frozenset({"huge_data"})
"""Attacks that ask for more than `--disk-gb`."""


def complaints(outcome: Outcome, *, disk_bytes: float) -> list[str]:
    """What is wrong with an outcome."""
    found = []
    if outcome.written_bytes > _WRITTEN_WANTED * outcome.told_bytes:
        found.append("wrote more than it told")
    if outcome.most_held_bytes > disk_bytes:
        found.append("held more than it was allowed")
    wanted = _INTERRUPTED
    if outcome.attack in REFUSED:
        wanted = _REFUSED_CODE
    elif outcome.attack in _TOO_LARGE:
        wanted = _TOO_LARGE_CODE
    if outcome.exit_code != wanted:
        found.append(f"ended with {outcome.exit_code} instead of {wanted}")
    if wanted != _INTERRUPTED and not outcome.sentence:
        found.append("said nothing")
    if wanted != _INTERRUPTED and outcome.left_behind_bytes:
        found.append("left something behind")
    return found


def main() -> int:
    """Run the attacks. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", default="seed", help="victims, of seed, join and validate (default: seed)")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="which, by name (default: all)")
    parser.add_argument("--weight-bytes", type=int, default=_WEIGHT_BYTES, help="weights that the runs promise")
    parser.add_argument("--disk-gb", type=float, default=_DISK_GB, help="what the victims are allowed")
    arguments = parser.parse_args()
    commands, attacks = arguments.commands.split(","), arguments.attacks.split(",")
    if unknown := [*set(commands).difference(ROLES), *set(attacks).difference(ATTACKS)]:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    key, wrong = Identity(os.urandom(16)), 0
    for command in commands:
        for attack in attacks:
            if command == "seed" and attack in NEEDS_MODEL:
                continue
            now, has_model = SystemClock().now(), command != "seed"
            run = hostile_run(attack, key, weight_bytes=arguments.weight_bytes, now=now, has_model=has_model)
            with tempfile.TemporaryDirectory(prefix="p2prl-hostile-") as folder:
                options = ("--disk-gb", str(arguments.disk_gb))
                outcome = attack_over_sockets(attack, run, command, Path(folder), options)
            found = complaints(outcome, disk_bytes=arguments.disk_gb * 1e9)
            wrong += bool(found)
            print(json.dumps({**dataclasses.asdict(outcome), "complaints": found}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
