"""Panel and progress line of a running seeder."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from p2prl.cli.views.quantities import peers_text, reach_text, version_text
from p2prl.client.seeder import Seeding
from p2prl.plain_text import counted
from p2prl.quantity_text import size_text


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
