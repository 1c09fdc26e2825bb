"""Serve the leaderboard of a run folder or a swarm, or print it once."""

from __future__ import annotations

import time
from pathlib import Path

from p2prl.cli.commands.open_ledger import check_source, ledger_of
from p2prl.cli.views.console import emit, say
from p2prl.errors import UnreachableError
from p2prl.scoreboard.ledger.run_folder_source import RunFolderSource
from p2prl.scoreboard.ledger.swarm_source import SwarmSource
from p2prl.scoreboard.summary import summary
from p2prl.scoreboard.web.listen_port import bind

_FIRST_LEDGER_S = 30.0
"""How long `board LINK --json` waits for the swarm before it gives up."""

_NEWER_LEDGER_S = 5.0
"""How long it then waits for a ledger newer than its stored copy, once a peer has answered."""


def board_command(
    source: str, *, host: str, port: int, home: Path | None, listen: list[str] | None, as_json: bool
) -> None:
    """Serve the leaderboard of `source`, a run folder or a join link, or print it once as JSON."""
    if as_json:
        with ledger_of(source, home, listen) as ledger:
            await_current_ledger(ledger)
            emit(summary(ledger))
        return
    check_source(source)
    # Bind the port first, so that a port in use fails before anything else starts.
    with bind(host, port) as listener, ledger_of(source, home, listen) as ledger:
        from p2prl.scoreboard.web.service import serve  # imports the web framework

        serve(
            ledger,
            host=host,
            port=port,
            listener=listener,
            on_ready=lambda url: say(f"board      {url}   Ctrl-C stops it"),
        )


def await_current_ledger(source: RunFolderSource | SwarmSource) -> None:
    """Wait until the ledger is current, not just the copy stored here last time."""
    began = time.monotonic()
    kept, reached_at = source.snapshot().signed_height, None
    while True:
        now, snapshot = time.monotonic(), source.snapshot()
        if reached_at is None and (isinstance(source, RunFolderSource) or snapshot.connected_peers):
            reached_at = now
        if reached_at is not None and snapshot.board is not None:
            signed = snapshot.signed_height
            newer = isinstance(source, RunFolderSource) or (signed is not None and signed > (kept or 0))
            if (newer or now > reached_at + _NEWER_LEDGER_S) and snapshot.board.height >= (signed or 0):
                return
        failure = source.failure()
        if failure is not None:
            raise failure
        if now > began + _FIRST_LEDGER_S:
            raise _no_ledger(reached=reached_at is not None, kept=kept)
        time.sleep(0.2)


def _no_ledger(*, reached: bool, kept: int | None) -> UnreachableError:
    what = "no ledger arrived" if reached else "no peer of the run answered"
    old = "" if kept is None else f"; the {kept:,} entries stored here may be out of date"
    return UnreachableError(
        f"{what} within {_FIRST_LEDGER_S:.0f} s{old}", remedy="Check that the run's learner is running."
    )
