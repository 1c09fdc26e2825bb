"""Write a board as a static site: completely, into a directory that is not there or empty, or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

from p2prl.cli.commands.open_ledger import await_current_ledger, ledger_of
from p2prl.cli.views.console import emit, say
from p2prl.disk_full import write_error
from p2prl.errors import ConfigError
from p2prl.plain_text import counted


def board_export_command(
    source: str, directory: Path, *, url: str, home: Path | None, listen: list[str] | None, as_json: bool
) -> None:
    """Write the board of `source`, a run folder or a join link, to `directory`."""
    if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
        raise ConfigError(
            f"{directory} exists and is not an empty directory", remedy="Give another one; nothing was touched."
        )
    from p2prl.scoreboard.web.static_site import write_site

    new = directory.with_name(directory.name + ".new")
    with ledger_of(source, home, listen) as ledger:
        await_current_ledger(ledger)
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            site = write_site(ledger, new, url=url)
            if directory.exists():
                directory.rmdir()
            new.rename(directory)
        except OSError as error:
            raise write_error(error, f"the site {directory}", kept="the run is unchanged") from error
        finally:
            shutil.rmtree(new, ignore_errors=True)
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
