"""Run a seeder from a join link. Neither this process nor its network process imports torch."""

from __future__ import annotations

from typing import Any

from p2prl.cli.commands.ledger_mirror import LedgerMirror
from p2prl.cli.commands.worker_session import StatusFile, end_session, introduce_run
from p2prl.cli.commands.worker_start import NETWORK, WorkerStart
from p2prl.cli.interrupts import Interrupts
from p2prl.cli.views.console import LiveView, say
from p2prl.cli.views.seeder_view import seeding_line, seeding_panel
from p2prl.cli.views.worker_introduction import seeder_introduction
from p2prl.client.seeder import Seeder, Seeding
from p2prl.clock import SystemClock
from p2prl.config.network_options import remember_run
from p2prl.config.refused_runs import forgetting_refused
from p2prl.net.process.handle import NetworkHandle
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import RunManifest


def seed_run(start: WorkerStart, *, as_json: bool) -> None:
    """Upload weights until interrupted or until the run ends."""
    link, worker, limits = start.link, start.worker, start.request.limits.machine
    directory = worker.run_directory(link.run)
    status = StatusFile(worker, link, "seeder")
    view = LiveView(quiet=as_json)
    controls = start.controls(computes=False)

    mirror = LedgerMirror(worker, link)

    def on_manifest(manifest: RunManifest, raw: bytes) -> int:
        plan = introduce_run(
            manifest,
            Role.SEEDER,
            directory,
            lambda needs, disk: seeder_introduction(manifest, needs, disk),
            limits,
            mirrors=True,
        )
        remember_run(directory, raw)
        mirror.begin(plan)
        return plan.network_bytes

    def on_progress(seeding: Seeding) -> None:
        status.write(seeding_document(seeding))
        view.update(lambda: seeding_panel(link.name, seeding), lambda: seeding_line(seeding))

    seeder = Seeder(clock=SystemClock(), on_manifest=on_manifest, on_progress=on_progress, on_notice=say)
    interrupts = Interrupts(seeder.stop, seeder.stop, finishing="Leaving the swarm; the weights on disk are kept.")
    with view.shown(), controls.running(), forgetting_refused(directory), interrupts.handled():
        view.phase("finding the run")
        network = start.network(Role.SEEDER)
        start.seal()
        controls.steer(seeder.owner, interrupts)
        handle = NetworkHandle(network, launch=start.launches.get(NETWORK))
        finished = seeder.run(mirror.around(handle))
    status.write(seeding_document(seeder.progress()))
    end_session(status, interrupts, finished=finished, as_json=as_json, kept="Stopped. The weights on disk are kept.")


def seeding_document(seeding: Seeding) -> dict[str, Any]:
    """A seeder's part of its status file and of `--json`."""
    return {
        "state": seeding.state,
        "version": seeding.version,
        "peers": dict(seeding.peers),
        "weight_bytes_received": seeding.received_bytes,
        "weight_bytes_from_learner": seeding.received_from_learner_bytes,
        "weight_bytes_from_peers": seeding.received_bytes - seeding.received_from_learner_bytes,
        "weight_bytes_over_circuits": seeding.received_over_circuits_bytes,
        "weight_bytes_sent": seeding.sent_bytes,
        "reach": seeding.reach,
        "upload_mbit": round(seeding.upload_bytes_s / 125_000.0, 2),
        "uploaded_bytes_month": seeding.uploaded_bytes_month,
        "network_resident_bytes": seeding.network_resident_bytes,
        "network_daemon_bytes": seeding.network_daemon_bytes,
    }
