"""List and explain this machine's groups, from its own files and, if asked, from the swarm's ledger."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p2prl.cli.commands.open_ledger import await_current_ledger, ledger_of_run, ledger_of_swarm
from p2prl.cli.commands.own_spools import find_group, spools_of
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.receipt_view import (
    explain_lines,
    group_document,
    record_document,
    record_lines,
    table_lines,
)
from p2prl.client.own_groups import OwnGroup, OwnGroups
from p2prl.config.own_runs import OwnRun, find_run
from p2prl.config.worker_folder import default_home
from p2prl.errors import ConfigError, MachineError
from p2prl.protocol.join_link import is_link
from p2prl.scoreboard.group_record import GroupRecord, record_of
from p2prl.scoreboard.ledger.journal_reader import JournalReader
from p2prl.scoreboard.ledger.known_run import open_run_manifest
from p2prl.scoreboard.ledger.leaderboard_totals import ESCROW_GROUPS
from p2prl.scoreboard.ledger_dump import all_entries

_READ_AT_ONCE = 256


def list_command(source: str, *, limit: int, home: Path | None, as_json: bool) -> None:
    """Print the newest groups of a run, of all volunteers on this machine."""
    runs = find_run(home or default_home(), source)
    with spools_of(runs) as spools:
        counts: dict[tuple[str, str], int] = {}
        rows: list[tuple[float, dict[str, Any]]] = []
        for run, groups in spools:
            escrow = groups.newest_credited(ESCROW_GROUPS)
            rows.extend((group.created, _document(run, group, escrow)) for group in groups.newest(limit))
            for key, count in groups.counts().items():
                counts[key] = counts.get(key, 0) + count
    newest = [document for _, document in sorted(rows, key=lambda row: -row[0])[:limit]]
    totals = [
        {"state": state, "reason": reason, "groups": count}
        for (state, reason), count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    if as_json:
        emit({"run": runs[0].manifest.name, "groups": newest, "counts": totals})
        return
    for line in table_lines(newest):
        sys.stdout.write(f"{line}\n")
    for total in totals:
        reason = f" ({total['reason']})" if total["reason"] else ""
        say(f"{total['groups']:,} {total['state']}{reason}")
    say(f"Why one of them:  p2prl receipts explain {runs[0].manifest.name} DIGEST")


def explain_command(
    source: str, digest: str, *, live: bool, home: Path | None, listen: list[str] | None, as_json: bool
) -> None:
    """Print why a group earned what it earned, by this machine's files and by a ledger if one is at hand."""
    if live and not is_link(source):
        raise ConfigError("--live needs the run's join link", remedy="Give the link in quotes: 'p2prl://NAME@…?b=…'")
    runs = find_run(home or default_home(), source)
    with spools_of(runs) as spools:
        found = find_group(spools, digest)
        group, document = found.group, _own_document(found.run, found.groups, found.group)
    record, where = _ledger_record(source, found.run, group.digest, live=live, home=home, listen=listen)
    ledger = None if record is None else record_document(record)
    if as_json:
        emit({"run": found.run.manifest.name, "group": document, "ledger": ledger, "source": where})
        return
    for line in explain_lines(group, document, ESCROW_GROUPS):
        sys.stdout.write(f"{line}\n")
    if ledger is None:
        say("For the signed receipt and the validators' verdicts, ask the swarm: p2prl receipts explain LINK … --live")
        return
    for line in record_lines(ledger, where):
        sys.stdout.write(f"{line}\n")


def _own_document(run: OwnRun, groups: OwnGroups, group: OwnGroup) -> dict[str, Any]:
    return _document(run, group, groups.newest_credited(ESCROW_GROUPS))


def _document(run: OwnRun, group: OwnGroup, escrow: frozenset[bytes]) -> dict[str, Any]:
    parameters, held = run.manifest.parameters, group.digest in escrow
    return group_document(group, run.seat, parameters=parameters, in_escrow=held)


def _ledger_record(
    source: str, run: OwnRun, group: bytes, *, live: bool, home: Path | None, listen: list[str] | None
) -> tuple[GroupRecord | None, str]:
    """What a ledger says about the group, and which ledger: the swarm's, the run folder's, or a copy kept here."""
    known = open_run_manifest(run.manifest_raw)
    if live:
        with ledger_of_swarm(source, home, listen) as swarm:
            say("asking the swarm for its ledger …")
            await_current_ledger(swarm)
            board = swarm.snapshot().board
            return record_of(known, all_entries(swarm, 0 if board is None else board.height), group), "the swarm"
    if not is_link(source) and (Path(source) / "run.manifest").is_file():
        with ledger_of_run(Path(source)) as folder:
            board = folder.snapshot().board
            height = 0 if board is None else board.height
            return record_of(known, all_entries(folder, height), group), f"run folder {source}"
    for copy in sorted((home or default_home()).glob(f"*-*/{run.directory.name}/ledger.db")):
        try:
            reader = JournalReader(copy)
        except MachineError:
            continue  # a board that has not stored an entry yet
        try:
            return record_of(known, _copied(reader), group), f"the copy in {copy.parent.parent.name}"
        finally:
            reader.close()
    return None, ""


def _copied(reader: JournalReader) -> Iterator[bytes]:
    done = 0
    while page := reader.entries(done, _READ_AT_ONCE):
        yield from page
        done += len(page)
