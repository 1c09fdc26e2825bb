"""Serve the leaderboard of a run folder or a swarm, or print it once."""

from __future__ import annotations

from pathlib import Path

from p2prl.cli.commands.open_ledger import await_current_ledger, check_source, ledger_of
from p2prl.cli.views.console import emit, say
from p2prl.scoreboard.summary import summary
from p2prl.scoreboard.web.listen_port import bind


def board_command(
    source: str,
    *,
    host: str,
    port: int,
    is_public: bool,
    home: Path | None,
    listen: list[str] | None,
    as_json: bool,
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
            is_public=is_public,
            on_ready=lambda url: say(f"board      {url}   Ctrl-C stops it"),
        )
