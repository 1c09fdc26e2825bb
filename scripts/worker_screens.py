"""Draw the screen of `p2prl join` in the states that a volunteer meets, at 80 and 120 columns, as text.

    python -m scripts.worker_screens                 # writes tests/unit/cli/views/screens/STATE-COLUMNS.txt

A test compares them with what the view draws: read them after a change of the view.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from p2prl.cli.views.worker_screen import WorkerScreen
from p2prl_lab.testing.sample_ledgers import identity

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "unit" / "cli" / "views" / "screens"

WIDTHS = (80, 120)

NOW = 1_795_000_000.0

SAMPLING: Mapping[str, Any] = {
    "run": "chain-of-sums", "role": "volunteer", "state": "sampling", "resting": False, "version": 46,
    "announced_version": 46, "learner_step": 92, "peers": {"learner": 1, "validator": 1, "volunteer": 14},
    "reach": "punched", "groups": {"generated": 3, "delivered": 4, "verified": 104, "rejected": 2, "expired": 1},
    "reasons": {"seed_mismatch": 2, "too_stale": 1}, "verified_tokens": 5_012, "tokens_per_s": 212.0,
    "reward_recent": 0.81, "fetching": [0, 0], "weight_bytes_received": 1_384_000,
    "weight_bytes_from_peers": 1_176_000, "weight_bytes_sent": 1_941_000,
    "run_progress": {
        "step": 94, "rank": None, "machines": 15, "since": NOW - 3_000, "next_share": 0.5, "next_s": 41.0,
        "cut_off_since": None,
        "curve": [[step, round(0.56 + 0.26 * (1 - 0.955 ** (step - 40)), 3)] for step in range(40, 95)],
    },
}  # fmt: skip
"""One of fifteen volunteers, fifty minutes after it joined."""

STATES: Mapping[str, Mapping[str, Any]] = {
    "sampling": SAMPLING,
    "newer-version": {**SAMPLING, "announced_version": 47, "fetching": [19, 32]},
    "offline": {
        **SAMPLING,
        "peers": {},
        "reach": "cut off",
        "run_progress": {**SAMPLING["run_progress"], "cut_off_since": NOW - 240},
    },
    "learner-away": {**SAMPLING, "peers": {"volunteer": 3}},
    "paused": {**SAMPLING, "state": "paused by you", "resting": True, "peers": {}, "version": -1, "reach": ""},
    "run-ended": {**SAMPLING, "state": "the run is finished", "peers": {"volunteer": 9}},
    "first-group": {
        **SAMPLING,
        "groups": {"generated": 1},
        "reasons": {},
        "verified_tokens": 0,
        "reward_recent": None,
        "reach": "",
        "run_progress": {"step": 94, "curve": [], "rank": None, "machines": 0, "since": None},
    },
}


def screen(state: str, columns: int) -> str:
    """The screen of a state as text, in UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        output = io.StringIO()
        console = Console(file=output, width=columns, color_system=None, legacy_windows=False)
        worker = {**STATES[state], "peer": identity("volunteer").peer_id}
        console.print(WorkerScreen(worker, now=NOW))
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for state in STATES:
        for columns in WIDTHS:
            (out / f"{state}-{columns}.txt").write_text(screen(state, columns), encoding="utf-8")
    print(f"{out}: {len(STATES) * len(WIDTHS)} screens")


if __name__ == "__main__":
    main()
