"""Final reward when volunteers choose among their own work slots, with slot accounts and without.

python -m p2prl_lab.bench_slot_selection [--updates 100] [--seeds 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from p2prl_lab.bench.trust.slot_selection import CASES, SelectionConfig, run_selection
from p2prl_lab.progress_lines import ProgressLines


def main() -> int:
    """Train all cases, and print a row for each, the mean over its seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-slot-selection"), help="folder of the warm starts")
    parser.add_argument("--json", action="store_true", help="print every row as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = SelectionConfig(updates=arguments.updates, seeds=arguments.seeds)
    progress = ProgressLines()
    rows = run_selection(config, arguments.out, on_progress=lambda share: progress.show(f"{share:.0%}"))
    progress.end()
    if arguments.json:
        print(json.dumps({"slot_selection": [asdict(row) for row in rows]}))
        return 0
    print("| selection | share | accounts | reward | updates | sampled | delivered | credited |")
    print("|---|---|---|---|---|---|---|---|")
    for name, share, priced in CASES:
        case = [row for row in rows if (row.selection, row.share, row.priced) == (name, share, priced)]
        reward = statistics.mean(row.reward for row in case)
        counts = (sum(getattr(row, each) for row in case) for each in ("updates", "sampled", "delivered", "used"))
        figures = " | ".join(f"{count / len(case):,.0f}" for count in counts)
        print(f"| {name} | {share:g} | {'on' if priced else 'off'} | {reward:.3f} | {figures} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
