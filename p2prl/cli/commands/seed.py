"""`p2prl seed`: upload a run's weights to its volunteers. `seed_worker` is imported once this process is confined."""

from __future__ import annotations

from p2prl.cli.commands.worker_start import requested, start_worker
from p2prl.cli.options import AsJson, Lan, Link, WorkerOptions, takes_records


@takes_records
def seed(link: Link, options: WorkerOptions, lan: Lan = False, as_json: AsJson = False) -> None:
    """Upload a run's weights to its volunteers, without a GPU.

    Needs no torch and little memory: chunks go from disk to peers.
    """
    start = start_worker(requested(link, options, "seeder", lan=lan))

    from p2prl.cli.commands.seed_worker import seed_run

    seed_run(start, as_json=as_json)
