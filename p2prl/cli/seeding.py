"""`p2prl seed`. Light: neither this process nor its network process imports torch."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from p2prl.cli import crashes
from p2prl.cli.console import Interrupts, View, emit, say
from p2prl.cli.worker_views import peers_text, version_text
from p2prl.client.seeder import Seeder, Seeding
from p2prl.clock import SystemClock
from p2prl.config.network_options import UploadCaps, peer_network, remember_run
from p2prl.config.worker_folder import claim_worker_folder, default_home, write_status
from p2prl.net.process.handle import DEFAULT_LISTEN, NetworkHandle
from p2prl.protocol.join_link import parse_link
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import RunManifest

_STATUS_PERIOD_S = 1.0
_FINISHED = 9
_INTERRUPTED = 130


def seed_run(
    link_text: str,
    *,
    home: Path | None,
    listen: list[str] | None,
    upload_mbit: float,
    monthly_gb: float,
    as_json: bool,
) -> None:
    """Pass weights on until interrupted or until the run ends."""
    link = parse_link(link_text)
    caps = UploadCaps(upload_mbit=upload_mbit, monthly_gb=monthly_gb)
    seat = claim_worker_folder(home or default_home(), kind="seeder")
    crashes.keep_in(seat.directory)
    directory = seat.run_directory(link.run)
    common = {"role": "seeder", "run": link.name, "peer": seat.identity.peer_id}
    view, next_at = View(quiet=as_json), 0.0

    def keep(manifest: RunManifest, raw: bytes) -> None:
        remember_run(directory, raw)
        say(f"seeding {manifest.name}: {manifest.goal}")

    def on_progress(seeding: Seeding) -> None:
        nonlocal next_at
        now = time.monotonic()
        if now >= next_at:
            next_at = now + _STATUS_PERIOD_S
            write_status(directory / "status.json", {**common, **document_of(seeding), "time": time.time()})
        view.update(lambda: _panel(link.name, seeding), lambda: line_of(seeding))

    seeder = Seeder(clock=SystemClock(), on_manifest=keep, on_progress=on_progress, on_notice=say)
    interrupts = Interrupts(seeder.stop, seeder.stop, finishing="Leaving the swarm; what is on disk is kept.")
    with view.shown(), interrupts.handled():
        network = peer_network(link, seat, Role.SEEDER, tuple(listen or DEFAULT_LISTEN), caps)
        finished = seeder.run(NetworkHandle(network))
    last = {**common, **document_of(seeder.progress()), "state": "finished" if finished else "stopped"}
    write_status(directory / "status.json", {**last, "time": time.time()})
    if as_json:
        emit(last)
    if finished:
        say("The learner has ended the run.")
    sys.exit(_FINISHED if finished else _INTERRUPTED)


def document_of(seeding: Seeding) -> dict[str, Any]:
    """What the status file and `--json` say."""
    return {
        "state": seeding.state,
        "version": seeding.version,
        "peers": dict(seeding.peers),
        "weight_bytes_received": seeding.received_bytes,
        "weight_bytes_from_learner": seeding.received_from_learner_bytes,
        "weight_bytes_from_peers": seeding.received_bytes - seeding.received_from_learner_bytes,
        "weight_bytes_sent": seeding.sent_bytes,
        "upload_mbit": round(seeding.upload_bytes_s / 125_000.0, 2),
        "uploaded_bytes_month": seeding.uploaded_bytes_month,
        "network_resident_bytes": seeding.network_resident_bytes,
        "network_daemon_bytes": seeding.network_daemon_bytes,
    }


def line_of(seeding: Seeding) -> str:
    """A seeder's state in a line."""
    fetching = f" {seeding.chunks_held}/{seeding.chunks} chunks" if seeding.chunks else ""
    return (
        f"{seeding.state}{fetching}  {version_text(seeding.version)}  peers: {peers_text(seeding.peers)}  "
        f"received {seeding.received_bytes / 1e6:,.1f} MB  passed on {seeding.sent_bytes / 1e6:,.1f} MB"
    )


def _panel(name: str, seeding: Seeding) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    fetching = f" {seeding.chunks_held}/{seeding.chunks} chunks" if seeding.chunks else ""
    table.add_row(name, f"{seeding.state}{fetching}")
    table.add_row("policy", version_text(seeding.version))
    table.add_row("peers", peers_text(seeding.peers))
    table.add_row("received", f"{seeding.received_bytes / 1e6:,.1f} MB")
    month = f"{seeding.uploaded_bytes_month / 1e9:,.2f} GB this month"
    cap = f", at most {seeding.upload_bytes_s / 125_000.0:,.1f} Mbit/s" if seeding.upload_bytes_s else ""
    table.add_row("passed on", f"{seeding.sent_bytes / 1e6:,.1f} MB   {month}{cap}")
    return table
