"""Run a seeder from a join link. Neither this process nor its network process imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from p2prl.cli.commands.worker_session import LedgerMirror, StatusFile, end_session, introduce_run
from p2prl.cli.commands.worker_start import NETWORK, WorkerStart
from p2prl.cli.interrupts import Interrupts
from p2prl.cli.views.console import LiveView, say
from p2prl.cli.views.quantities import peers_text, reach_text, version_text
from p2prl.cli.views.worker_introduction import seeder_introduction
from p2prl.client.seeder import Seeder, Seeding
from p2prl.clock import SystemClock
from p2prl.config.network_options import remember_run
from p2prl.config.refused_runs import forgetting_refused
from p2prl.net.process.handle import NetworkHandle
from p2prl.plain_text import counted
from p2prl.protocol.join_link import reach_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import RunManifest
from p2prl.quantity_text import size_text


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

    seeder = Seeder(
        clock=SystemClock(),
        on_manifest=on_manifest,
        on_progress=on_progress,
        on_notice=say,
        on_waiting=None if link.bootstrap else _say_where,
    )
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


def _say_where(addresses: tuple[str, ...]) -> None:
    """Say how the run's learner finds this seeder, which knows nobody."""
    places = one_of_each_family(addresses) or ("ADDRESS",)
    say("Waiting for the run's learner. It finds this machine with:")
    say(f"p2prl learn RUN {' '.join(f'--via {each}' for each in places)}", unwrapped=True)


def one_of_each_family(addresses: Sequence[str]) -> tuple[str, ...]:
    """The first public address of each IP version: a link that names both serves machines that have one alone."""
    public = [each for each in addresses if reach_of(each) == "internet"]
    first = [next((each for each in public if each.startswith(kind)), "") for kind in ("/ip4/", "/ip6/")]
    return tuple(filter(None, first)) or tuple(addresses[:1])


def seeding_document(seeding: Seeding) -> dict[str, object]:
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


def seeding_line(seeding: Seeding) -> str:
    """A seeder's state in one line."""
    return (
        f"{_state(seeding)}  {version_text(seeding.version)}  peers: {peers_text(seeding.peers)}  "
        f"received {size_text(seeding.received_bytes)}  sent {size_text(seeding.sent_bytes)}"
    )


def seeding_panel(name: str, seeding: Seeding) -> RenderableType:
    """A seeder's state, redrawn in place."""
    table = Table.grid(padding=(0, 2))
    table.add_row(name, _state(seeding))
    table.add_row("policy", version_text(seeding.version))
    table.add_row("peers", peers_text(seeding.peers))
    if reach := reach_text(seeding.reach):
        table.add_row("reach", reach)
    table.add_row("received", size_text(seeding.received_bytes))
    cap = f", at most {seeding.upload_bytes_s / 125_000.0:,.1f} Mbit/s" if seeding.upload_bytes_s else ""
    month = f"{size_text(seeding.uploaded_bytes_month)} this month{cap}"
    table.add_row("sent", f"{size_text(seeding.sent_bytes)}   {month}")
    table.add_row("stop", "Ctrl-C leaves at once; the weights on disk are kept")
    return table


def _state(seeding: Seeding) -> str:
    chunks = f" {seeding.chunks_held:,} of {counted(seeding.chunks, 'chunk')}" if seeding.chunks else ""
    return seeding.state + chunks
