"""Run, or continue, the published staleness experiment.

    nice -n 19 python -m scripts.staleness_experiment

One thread; --tasks gives each of several processes its share. Finished batches are appended to
docs/benchmarks/staleness_runs.jsonl, which is committed; a later run, on any machine, continues after them. Ctrl-C
loses the batch under way. Warm starts are kept in --work and made again where they are missing. Each batch prints what
is left; --report writes the tables and the figure without running anything.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from p2prl.bench.staleness.benchmark import run_batch, seeds_at_once
from p2prl.bench.staleness.experiment import PARTS, CompactResults, next_job, remaining_seconds
from p2prl.bench.staleness.experiment_report import draw, report
from p2prl.bench.training.environments import environment_by_name
from p2prl.models.device import use_threads
from p2prl.progress_lines import say

FOLDER = Path("docs/benchmarks")
SAID_EVERY_S = 60.0


def main() -> int:
    """Run until nothing is missing, or for --hours; write the tables after every batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=FOLDER / "staleness_runs.jsonl", help="file of results")
    parser.add_argument("--table", type=Path, default=FOLDER / "staleness_runs.md", help="Markdown file to write")
    parser.add_argument("--figure", type=Path, default=FOLDER / "staleness_runs.png", help="curves to draw")
    parser.add_argument("--work", type=Path, default=Path("runs/staleness-experiment"), help="folder of warm starts")
    parser.add_argument("--hours", type=float, default=1e9, help="begin no batch after this many hours")
    parser.add_argument("--tasks", nargs="+", choices=[part.task for part in PARTS], help="run these alone")
    parser.add_argument("--report", action="store_true", help="write the tables and the figure, and stop")
    arguments = parser.parse_args()
    use_threads(1)
    results = CompactResults(arguments.data)
    parts = [part for part in PARTS if not arguments.tasks or part.task in arguments.tasks]
    ends = time.monotonic() + 3600 * arguments.hours
    expected, spent = 0.0, 0.0
    while not arguments.report and time.monotonic() < ends and (job := next_job(results, parts)) is not None:
        left = remaining_seconds(results, parts) * (spent / expected if expected else 1.0)
        say(f"{left / 3600:.1f} CPU-hours left; {job.part.task}, {job.method} under {job.law}, {job.updates} updates")
        began, environment = time.process_time(), environment_by_name(job.part.task)
        size = seeds_at_once(job.part.task)
        for start in range(0, len(job.seeds), size):
            seeds = list(job.seeds[start : start + size])
            run_batch(
                results, environment, job.method, job.law, job.plan, seeds, arguments.work, Progress(seeds), job.shorter
            )
        expected, spent = expected + job.seconds, spent + time.process_time() - began
        write(arguments.table, results)
    write(arguments.table, results)
    draw(results, arguments.figure)
    say(f"{remaining_seconds(results, parts) / 3600:.1f} CPU-hours left")
    return 0


class Progress:
    """Says now and then how far a batch is."""

    def __init__(self, seeds: list[int]) -> None:
        self._name = f"seeds {seeds[0]} to {seeds[-1]}"
        self._said = time.monotonic()

    def __call__(self, share: float, prefix: str = "") -> None:
        """Called after every update."""
        if time.monotonic() - self._said >= SAID_EVERY_S:
            self._said = time.monotonic()
            say(f"  {prefix}{self._name}: {share:.0%}")


def write(path: Path, results: CompactResults) -> None:
    """Write the tables."""
    path.write_text("# Staleness: tables of the experiment\n\n" + HEAD + report(results), encoding="utf-8")


HEAD = """Written by `python -m scripts.staleness_experiment`, which continues after the runs in
`staleness_runs.jsonl`. Means over the last five of sixteen evaluations on reporting seeds, which span 1.25 delays, and
over the last three on development seeds, ± standard errors over seeds. What it is: [staleness.md](staleness.md).

"""


if __name__ == "__main__":
    sys.exit(main())
