"""Run, or continue, the published staleness experiment.

    nice -n 19 python -m p2prl_lab.staleness_experiment --processes 2

Each process uses one thread. Finished batches are appended to --data; a later run, on any machine, continues after
them. Ctrl-C loses the batches under way. Warm starts are kept in --work and made again where they are missing. What is
left is said after every batch. --report writes the tables and the figure without running anything. The published
tables are docs/benchmarks/staleness_runs.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import active_children, get_context
from pathlib import Path

from p2prl.confinement import linux
from p2prl.models.hardware.device_choice import use_threads
from p2prl_lab.bench.staleness.benchmark import train_batch
from p2prl_lab.bench.staleness.experiment import PARTS, CompactResults, Job
from p2prl_lab.bench.staleness.experiment_queue import ExperimentQueue
from p2prl_lab.bench.staleness.experiment_report import draw, report
from p2prl_lab.bench.staleness.results import Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.progress_lines import say

FOLDER = Path("runs/staleness-experiment")
SAID_EVERY_S = 60.0

Trained = tuple[dict[Setting, list[SeedResult]], float]
"""Results of a batch, and its processor time in seconds."""


def main() -> int:
    """Run until nothing is missing, or for --hours; write the tables at the end, also after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=FOLDER / "runs.jsonl", help="file of results")
    parser.add_argument("--table", type=Path, default=FOLDER / "runs.md", help="Markdown file to write")
    parser.add_argument("--figure", type=Path, default=FOLDER / "runs.png", help="curves to draw")
    parser.add_argument("--work", type=Path, default=FOLDER, help="folder of warm starts")
    parser.add_argument("--processes", type=int, default=1, help="batches to run side by side")
    parser.add_argument("--hours", type=float, default=1e9, help="begin no batch expected to end after this many hours")
    parser.add_argument("--tasks", nargs="+", choices=[part.task for part in PARTS], help="run these alone")
    parser.add_argument("--report", action="store_true", help="write the tables and the figure, and stop")
    arguments = parser.parse_args()
    if arguments.processes < 1:
        parser.error("--processes: at least 1")
    results = CompactResults(arguments.data)
    parts = [part for part in PARTS if not arguments.tasks or part.task in arguments.tasks]
    queue = ExperimentQueue(results, parts)
    try:
        if not arguments.report:
            run(queue, arguments.work, arguments.processes, ends=time.monotonic() + 3600 * arguments.hours)
    except KeyboardInterrupt:
        say("Stopped. The same command goes on after the batches that had finished.")
        return 130
    finally:
        write(arguments.table, results)
    draw(results, arguments.figure)
    say(f"{queue.remaining_hours:.1f} CPU-hours left")
    return 0


def run(queue: ExperimentQueue, work: Path, processes: int, *, ends: float) -> None:
    """Keep `processes` batches running until none is left that fits before `ends`, in `time.monotonic()`."""
    running: dict[Future[Trained], Job] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=prepare) as pool:
        try:
            while True:
                for job in queue.take(processes - len(running), within_s=ends - time.monotonic()):
                    say(f"begun: {name_of(job)}")
                    running[pool.submit(train, job, work)] = job
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    found, spent_s = future.result()
                    queue.finish(running.pop(future), found, spent_s=spent_s)
                say(f"{queue.remaining_hours:.1f} CPU-hours left")
        except BaseException:
            for process in active_children():  # the pool waits for batches under way, which take minutes
                process.terminate()
            raise


def prepare() -> None:
    """Set up a process of the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process: the first one ends the others
    if sys.platform == "linux":
        linux.die_with_parent()
    use_threads(1)


def train(job: Job, work: Path) -> Trained:
    """Train one batch, in a process of the pool."""
    began = time.process_time()
    found = train_batch(
        environment_by_name(job.part.task),
        job.method,
        job.law,
        (job.plan, *job.shorter),
        job.seeds,
        work,
        Progress(job),
    )
    return found, time.process_time() - began


def name_of(job: Job) -> str:
    """The batch in a line of progress."""
    seeds = f"seeds {job.seeds[0]} to {job.seeds[-1]}"
    return f"{job.part.task}, {job.method} under {job.law}, {job.updates} updates, {seeds}"


class Progress:
    """Says now and then how far a batch is."""

    def __init__(self, job: Job) -> None:
        self._name = name_of(job)
        self._said = time.monotonic()

    def __call__(self, share: float, prefix: str = "") -> None:
        """Called after every update."""
        if time.monotonic() - self._said >= SAID_EVERY_S:
            self._said = time.monotonic()
            say(f"  {prefix}{self._name}: {share:.0%}")


def write(path: Path, results: CompactResults) -> None:
    """Write the tables."""
    path.write_text("# Staleness: tables of the experiment\n\n" + HEAD + report(results), encoding="utf-8")


HEAD = """Written by `python -m p2prl_lab.staleness_experiment`. Means over the last five of sixteen evaluations on
reporting seeds, which span 1.25 delays, and over the last three on development seeds, ± standard errors over seeds.
What it is: [staleness.md](staleness.md).

"""


if __name__ == "__main__":
    sys.exit(main())
