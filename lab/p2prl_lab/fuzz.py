"""Fuzz every decoder that a stranger's bytes reach; print a report as JSON. `make fuzz` gives them a million inputs.

    python -m p2prl_lab.fuzz --inputs 1000000 --seed 0
    python -m p2prl_lab.fuzz --only "signed:" --inputs 20000

Inputs are valid ones changed, structured ones made from the wire's annotations, and any bytes; the same seed gives the
same inputs. Exits 1 when anything but a protocol error was raised, or an input took too much time or memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p2prl_lab.progress_lines import say
from p2prl_lab.testing.fuzz.campaign import MOST_BYTES, SLOWEST_S, TargetReport, run_campaign
from p2prl_lab.testing.fuzz.every_target import every_target

_VECTORS = Path(__file__).parents[2] / "tests" / "vectors" / "wire.json"
_ADDRESS_SPACE = 16 * 1024**3
"""So that an input that asks for everything fails here, and not the machine."""


def main() -> int:
    """Run the campaign and print its report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--json", action="store_true", help="print the whole report, not the totals and failures alone")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    began, reports = time.monotonic(), list[TargetReport]()
    with tempfile.TemporaryDirectory(prefix="p2prl-fuzz-") as folder:
        vectors = json.loads(_VECTORS.read_text())
        targets = [target for target in every_target(vectors, Path(folder)) if given.only in target.name]
        if not targets:
            parser.error(f"no target has {given.only!r} in its name")
        for report in run_campaign(targets, given.inputs, seed=given.seed):
            reports.append(report)
            say(f"{len(reports):3}/{len(targets)} {report.target}: {report.inputs} inputs, {report.failures} failures")
    print(json.dumps(_document(reports, given, time.monotonic() - began), indent=None if given.json else 2))
    return 1 if any(report.failures for report in reports) else 0


def _document(reports: list[TargetReport], given: argparse.Namespace, wall_s: float) -> dict[str, Any]:
    slowest = max(reports, key=lambda report: report.slowest_s)
    hungriest = max(reports, key=lambda report: report.most_added_bytes)
    document: dict[str, Any] = {
        "seed": given.seed,
        "targets": len(reports),
        "inputs": sum(report.inputs for report in reports),
        "accepted": sum(report.accepted for report in reports),
        "refused": sum(sum(report.refused.values()) for report in reports),
        "failures": sum(report.failures for report in reports),
        "slowest_s": round(slowest.slowest_s, 4),
        "slowest_target": slowest.target,
        "slowest_allowed_s": SLOWEST_S,
        "most_added_bytes": hungriest.most_added_bytes,
        "most_added_target": hungriest.target,
        "most_added_allowed_bytes": MOST_BYTES,
        "wall_s": round(wall_s, 1),
    }
    shown = reports if given.json else [report for report in reports if report.failures]
    return document | {"reports": [asdict(report) for report in shown]}


if __name__ == "__main__":
    sys.exit(main())
