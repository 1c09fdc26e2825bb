"""`p2prl receipts`: why this machine's groups earned what they earned, by its own files and, if asked, by a ledger."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.commands.open_ledger import await_current_ledger, ledger_of_run, ledger_of_swarm
from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, Device, Home, Listen, NoConfinement, Threads
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.receipt_view import (
    evidence_document,
    evidence_lines,
    explain_lines,
    group_document,
    record_document,
    record_lines,
    table_lines,
)
from p2prl.client.evidence import read_evidence
from p2prl.client.own_groups import OwnGroup
from p2prl.config.own_runs import OwnRun, find_group, find_run, spools_of
from p2prl.config.worker_folder import default_home
from p2prl.errors import ConfigError, MachineError
from p2prl.protocol.join_link import is_link
from p2prl.scoreboard.group_record import GroupRecord, record_of
from p2prl.scoreboard.ledger.escrow import ESCROW_GROUPS
from p2prl.scoreboard.ledger.journal_reader import JournalReader
from p2prl.scoreboard.ledger.known_run import open_run_manifest
from p2prl.scoreboard.ledger_dump import all_entries

receipts_app = typer.Typer(no_args_is_help=True, help="Why your groups earned what they earned.")

OwnRunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's name as `p2prl status` shows it, its join link, or its run folder."),
]
GroupName = Annotated[
    str, typer.Argument(metavar="DIGEST", help="The first digits of a group's name, as `p2prl receipts list` shows it.")
]


@receipts_app.command("list", epilog=epilog("p2prl receipts list"))
def list_(
    source: OwnRunName,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Groups to show, the newest first.")] = 20,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """List this machine's groups: state, reason, credit, time and policy version. Asks nobody."""
    runs = find_run(home or default_home(), source)
    with spools_of(runs) as spools:
        counts: dict[tuple[str, str], int] = {}
        rows: list[tuple[float, dict[str, object]]] = []
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


@receipts_app.command("explain", epilog=epilog("p2prl receipts explain"))
def explain(
    source: OwnRunName,
    digest: GroupName,
    live: Annotated[
        bool, typer.Option("--live", help="Also ask the swarm for its ledger; RUN is a join link then.")
    ] = False,
    home: Home = None,
    listen: Listen = None,
    as_json: AsJson = False,
) -> None:
    """Say why a group earned what it earned, who judged it, and what to do about it."""
    if live and not is_link(source):
        raise ConfigError("--live needs the run's join link", remedy="Give the link in quotes: 'p2prl://NAME@…?b=…'")
    runs = find_run(home or default_home(), source)
    with spools_of(runs) as spools:
        found = find_group(spools, digest)
        group, document = found.group, _document(found.run, found.group, found.groups.newest_credited(ESCROW_GROUPS))
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


@receipts_app.command("replay", epilog=epilog("p2prl receipts replay"))
def replay(
    run: OwnRunName,
    digest: GroupName,
    home: Home = None,
    device: Device = "auto",
    threads: Threads = 0,
    no_confinement: NoConfinement = False,
    as_json: AsJson = False,
) -> None:
    """Replay a group on this machine as a validator would, and compare the outcome with the learner's receipt.

    Exits with 1 when the two disagree, and with 4 when the group or its policy version is not here any more.
    """
    from p2prl.cli.commands.receipts_replay import ReplayRequest, replay_command

    request = ReplayRequest(device=device, threads=threads, confine=not no_confinement)
    replay_command(run, digest, request, home=home, as_json=as_json)


@receipts_app.command("evidence", epilog=epilog("p2prl receipts evidence"))
def evidence(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file that `p2prl join` named when it stopped.")],
    as_json: AsJson = False,
) -> None:
    """Show and check signed proof that a learner rejected a volunteer's groups. Asks nobody; anybody's file will do."""
    checked = read_evidence(file)
    document = evidence_document(checked)
    if as_json:
        emit(document)
        return
    for line in evidence_lines(document):
        sys.stdout.write(f"{line}\n")


_READ_AT_ONCE = 256


def _document(run: OwnRun, group: OwnGroup, escrow: frozenset[bytes]) -> dict[str, object]:
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
