"""`p2prl board`: the leaderboard of a run, served, written as a static site, or printed once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.commands.open_ledger import await_current_ledger, check_source, ledger_of
from p2prl.cli.options import AsJson, Home, Listen
from p2prl.cli.views.console import emit, say
from p2prl.config.run_folder import new_folder
from p2prl.disk_full import write_error
from p2prl.errors import ConfigError
from p2prl.plain_text import counted
from p2prl.scoreboard.summary import summary
from p2prl.scoreboard.web.listen_port import bind


def board(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A run folder, or a join link in quotes.")],
    host: Annotated[str, typer.Option("--host", help="Address to serve the page on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0 picks a free one.")] = 8000,
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="Answer under any name, behind a proxy on this machine, and let any web page read the API, "
            "as with a --host that other machines can reach.",
        ),
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", help="Write the board as a static site to this new directory and end. Default: serve it."
        ),
    ] = None,
    url: Annotated[
        str,
        typer.Option("--url", help="With --export: where the site will be served, for previews. Default: unknown."),
    ] = "",
    home: Home = None,
    listen: Listen = None,
    as_json: AsJson = False,
) -> None:
    """Serve a run's leaderboard as a web page.

    Shows what is being taught, contributors, sample answers and the reward curve. With --json, print it once and exit.
    """
    if export is not None:
        _export(source, export, url=url, home=home, listen=listen, as_json=as_json)
        return
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
            is_public=public,
            on_ready=lambda url: say(f"board      {url}   Ctrl-C stops it"),
        )


def _export(
    source: str, directory: Path, *, url: str, home: Path | None, listen: list[str] | None, as_json: bool
) -> None:
    """Write the board of `source`, a run folder or a join link, to `directory`."""
    if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
        raise ConfigError(
            f"{directory} exists and is not an empty directory", remedy="Give another one; nothing was touched."
        )
    from p2prl.scoreboard.web.static_site import write_site

    with ledger_of(source, home, listen) as ledger:
        await_current_ledger(ledger)
        try:
            with new_folder(directory) as new:
                site = write_site(ledger, new, url=url)
        except OSError as error:
            raise write_error(error, f"the site {directory}", kept="the run is unchanged") from error
    if as_json:
        emit(
            {
                "directory": str(directory),
                "pages": site.pages,
                "contributors": site.contributors,
                "entries": site.entries,
            }
        )
        return
    people = counted(site.contributors, "contributor")
    entries = counted(site.entries, "entry", "entries")
    say(f"Wrote {directory}: the board with pages of {people} and a ledger of {entries}.")
    say(f"Look at it:  python -m http.server --directory {directory}")
