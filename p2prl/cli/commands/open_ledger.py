"""Open the ledger of a run folder or of the swarm behind a join link, for the board and the ledger commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from p2prl.cli import crash_log
from p2prl.cli.reach import visibility_line
from p2prl.cli.views.console import say
from p2prl.clock import SystemClock
from p2prl.config.network_options import PEERS_FILE, known_run
from p2prl.config.run_folder import Folder, open_folder
from p2prl.config.worker_folder import claim_worker_folder, default_home, holder_of, read_status
from p2prl.errors import ConfigError, MachineError, UnreachableError
from p2prl.learner.evaluation.results_file import read_results
from p2prl.net.listen_addresses import DEFAULT_LISTEN
from p2prl.net.storage.kept_peers import read_peers
from p2prl.plain_text import counted
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.join_link import is_link, parse_link
from p2prl.scoreboard.ledger.journal_reader import JournalReader
from p2prl.scoreboard.ledger.ledger_sources import PaceOfRun, RanksOfRun
from p2prl.scoreboard.ledger.run_folder_source import RunFolderSource
from p2prl.scoreboard.ledger.swarm_source import SwarmSource, SwarmSourceConfig
from p2prl.swarm.peers.peer_memory import PeerMemory
from p2prl.validator.own_ledger import FILE_NAME as OWN_LEDGER

_PROBE_S = 1.0
"""Seconds between two tests of the learner's lock: a test takes it for an instant, in which no learner can start."""

_FIRST_LEDGER_S = 30.0
"""How long `board LINK --json` and `ledger verify LINK` wait for the swarm's next entry before they give up."""

_NEWER_LEDGER_S = 5.0
"""How long they then wait for a ledger newer than the copy stored here, once a peer has answered."""


class LearnerWatch:
    """Tells whether a run folder's learner is running, as `p2prl status` does: by its lock and its last report."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._probed_at = float("-inf")
        self._offline_since: float | None = None

    def __call__(self) -> float | None:
        """When the learner last reported, seconds since 1970, if none is running; None while one is."""
        if (now := time.monotonic()) >= self._probed_at + _PROBE_S:
            self._probed_at, self._offline_since = now, self._probe()
        return self._offline_since

    def _probe(self) -> float | None:
        if holder_of(self._directory) is not None:
            return None
        reported = read_status(self._directory / "status.json").get("time")
        # Before its first report, the start of its last process is known: it wrote the lock file.
        lock = self._directory / "lock"
        started = lock.stat().st_mtime if lock.exists() else 0.0
        return max(started, float(reported)) if isinstance(reported, int | float) else started


def check_source(source: str) -> None:
    """Raise `ConfigError` when `source` is no join link, run folder or own ledger of a validator. Opens nothing."""
    if is_link(source):
        parse_link(source)
    elif not _is_of_validator(Path(source)):
        open_folder(Path(source))


@contextmanager
def ledger_of(source: str, home: Path | None, listen: list[str] | None) -> Iterator[RunFolderSource | SwarmSource]:
    """The ledger of a run folder or a join link, or a validator's own in its folder of the run. Closed at the end."""
    if is_link(source):
        with ledger_of_swarm(source, home, listen) as link_source:
            yield link_source
    elif _is_of_validator(Path(source)):
        with _ledger_of_validator(Path(source)) as own_source:
            yield own_source
    else:
        with ledger_of_run(Path(source)) as run_source:
            yield run_source


@contextmanager
def ledger_of_run(directory: Path) -> Iterator[RunFolderSource]:
    """The ledger in a run folder's journal."""
    folder = open_folder(directory)
    source = RunFolderSource(
        folder.paths.journal,
        folder.manifest_raw,
        join_link=lambda: _link_to_show(folder),
        planned_updates=folder.planned_updates,
        offline_since=LearnerWatch(directory),
        evaluations=lambda: read_results(folder.paths.evaluations).objects,
        pace=lambda: PaceOfRun.of_status(read_status(directory / "status.json")),
        ranks=lambda: RanksOfRun.of_status(read_status(directory / "status.json")),
    )
    try:
        yield source
    finally:
        source.close()


def _link_to_show(folder: Folder) -> str:
    """The learner's newest link as a page may show it; empty before there is one.

    Its file may be of a release that named any peer that could be dialed. So each in it has to have said, in a record
    that the learner remembers, that links may name it.
    """
    try:
        link = parse_link(folder.link_file.read_text())
    except (OSError, ConfigError):
        return ""
    own = folder.identity.peer_id
    alone = link.published(own, ())
    if alone != link:
        memory = PeerMemory(folder.run, own)
        memory.restore(read_peers(folder.directory / PEERS_FILE), SystemClock().now())
        alone = link.published(own, memory.listed)
    return str(alone) if alone.bootstrap else ""


def _is_of_validator(directory: Path) -> bool:
    return (directory / OWN_LEDGER).is_file()


@contextmanager
def _ledger_of_validator(directory: Path) -> Iterator[RunFolderSource]:
    """The ledger that a validator keeps of its own, in its folder of the run."""
    reader = JournalReader(directory / OWN_LEDGER)
    head = reader.signed_head()
    reader.close()
    if not head:
        raise UnreachableError("this validator has signed no receipt yet", remedy="Try again in a minute.")
    opened = open_envelope(head, now=None)
    manifest = known_run(directory, Digest(opened.run))
    if not manifest:
        raise MachineError(f"there is no usable run manifest in {directory}", remedy="Start the validator again.")
    source = RunFolderSource(directory / OWN_LEDGER, manifest, validator=opened.author)
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
    say(visibility_line())
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


def await_current_ledger(
    source: RunFolderSource | SwarmSource, *, on_entries: Callable[[int], None] = lambda _: None
) -> None:
    """Wait until the ledger is current, not just the copy stored here last time.

    `on_entries` gets the number of entries here, whenever there are more. Raises `UnreachableError` when none comes.
    """
    began = time.monotonic()
    kept, reached_at, grew_at, height = source.snapshot().signed_height, None, began, -1
    while True:
        now, snapshot = time.monotonic(), source.snapshot()
        if reached_at is None and (isinstance(source, RunFolderSource) or snapshot.connected_peers):
            reached_at = now
        here = -1 if snapshot.board is None else snapshot.board.height + snapshot.unproven_entries
        if here > height:
            height, grew_at = here, now
            on_entries(height)
        if reached_at is not None and snapshot.board is not None:
            signed = snapshot.signed_height
            newer = isinstance(source, RunFolderSource) or (signed is not None and signed > (kept or 0))
            if (newer or now > max(reached_at, grew_at) + _NEWER_LEDGER_S) and snapshot.board.height >= (signed or 0):
                return
        failure = source.failure()
        if failure is not None:
            raise failure
        if now > grew_at + _FIRST_LEDGER_S:
            raise _no_ledger(reached=reached_at is not None, kept=kept)
        time.sleep(0.2)


def _no_ledger(*, reached: bool, kept: int | None) -> UnreachableError:
    what = "no ledger arrived" if reached else "no peer of the run answered"
    old = "" if kept is None else f"; what is stored here ({counted(kept, 'entry', 'entries')}) may be out of date"
    return UnreachableError(
        f"{what} within {_FIRST_LEDGER_S:.0f} s{old}",
        remedy="If the learner is away, use a link with the address of another peer that is up: "
        "every validator and seeder mirrors the ledger.",
    )
