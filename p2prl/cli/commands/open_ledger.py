"""Open the ledger of a run folder or of the swarm behind a join link, for the board and the ledger commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2prl.cli import crash_log
from p2prl.clock import SystemClock
from p2prl.config.run_folder import open_folder
from p2prl.config.worker_folder import claim_worker_folder, default_home
from p2prl.net.process.network_config import DEFAULT_LISTEN
from p2prl.protocol.join_link import SCHEME, parse_link
from p2prl.scoreboard.ledger.run_folder_source import RunFolderSource
from p2prl.scoreboard.ledger.swarm_source import SwarmSource, SwarmSourceConfig


def check_source(source: str) -> None:
    """Raise `ConfigError` when `source` is neither a run folder nor a join link. Opens nothing."""
    if source.startswith(SCHEME):
        parse_link(source)
    else:
        open_folder(Path(source))


@contextmanager
def ledger_of(source: str, home: Path | None, listen: list[str] | None) -> Iterator[RunFolderSource | SwarmSource]:
    """The ledger of a run folder or a join link, closed at the end."""
    if source.startswith(SCHEME):
        with ledger_of_swarm(source, home, listen) as link_source:
            yield link_source
    else:
        with ledger_of_run(Path(source)) as run_source:
            yield run_source


@contextmanager
def ledger_of_run(directory: Path) -> Iterator[RunFolderSource]:
    """The ledger in a run folder's journal."""
    folder = open_folder(directory)
    link = folder.link_file.read_text().strip() if folder.link_file.exists() else ""
    source = RunFolderSource(
        folder.paths.journal, folder.manifest_raw, join_link=link, planned_updates=folder.planned_updates
    )
    try:
        yield source
    finally:
        source.close()


@contextmanager
def ledger_of_swarm(link_text: str, home: Path | None, listen: list[str] | None) -> Iterator[SwarmSource]:
    """The ledger received from the peers of a join link, stored in its own worker folder."""
    link = parse_link(link_text)
    worker = claim_worker_folder(home or default_home(), kind="board")
    crash_log.keep_in(worker.directory)
    config = SwarmSourceConfig(
        link=link,
        key_file=worker.key_file,
        folder=worker.run_directory(link.run),
        listen=tuple(listen or DEFAULT_LISTEN),
    )
    source = SwarmSource(config, clock=SystemClock())
    try:
        yield source
    finally:
        source.close()
        worker.release()
