"""Replay one of this machine's groups in a confined process, and compare the outcome with the learner's receipt.

What it reads came from strangers: the run's files and weights. So it confines itself as a worker does, before it
imports anything large.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from p2prl import exit_codes
from p2prl.cli.commands.worker_start import TOKENIZER
from p2prl.cli.views.console import emit, say
from p2prl.client.spool import GIVEN_UP
from p2prl.config.own_replay import agreement, find_policy, read_own_group, replay_group
from p2prl.config.own_runs import OwnRun, find_group, find_run, spools_of
from p2prl.config.worker_folder import default_home
from p2prl.confinement.role_confinement import Protection, confine_calls, confine_files
from p2prl.confinement.starter import Starter
from p2prl.errors import MachineError
from p2prl.models.tokenizer.confined import tokenizer_program
from p2prl.plain_text import counted
from p2prl.protocol.ledger_messages import ReceiptState

if TYPE_CHECKING:
    from p2prl.client.own_groups import OwnGroup
    from p2prl.confinement.children import Launch
    from p2prl.models.groups.group_work import ReplayTools
    from p2prl.protocol.ledger_messages import Verdict
    from p2prl.protocol.signed_group import SignedGroup

_STATES = {
    "verified": ReceiptState.VERIFIED,
    "rejected": ReceiptState.REJECTED,
    "expired": ReceiptState.EXPIRED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayRequest:
    """What the owner of the machine asked for."""

    device: str
    threads: int
    confine: bool


def replay_command(source: str, digest: str, request: ReplayRequest, *, home: Path | None, as_json: bool) -> None:
    """Replay a group and print what came out. Exits with 1 when the learner's receipt says otherwise."""
    runs = find_run(home or default_home(), source)
    with spools_of(runs) as spools:
        found = find_group(spools, digest)
        kept = found.groups.bytes_of(found.group.digest)
    if kept is None:
        raise MachineError(
            f"the bytes of group {found.group.digest.hex()[:12]} are not here any more",
            remedy="This machine keeps the newest groups that the learner has judged, and drops the oldest for new "
            "ones: replay one that p2prl receipts list --json calls kept.",
        )
    group = read_own_group(*kept)
    folders = [found.run.blobs, *(run.blobs for run in runs if run.blobs != found.run.blobs)]
    verdict = _replay(found.run, group, folders, request)
    # What this machine gave up itself, no learner has judged.
    state = None if found.group.reason in GIVEN_UP else _STATES.get(found.group.state)
    said = agreement(verdict, state, found.group.reason)
    document = _document(found.group, verdict, said.code, said.sentence)
    if as_json:
        emit({"run": found.run.manifest.name, **document})
    else:
        for line in _lines(document):
            sys.stdout.write(f"{line}\n")
    if said.code == "disagrees":
        raise typer.Exit(exit_codes.UNEXPECTED)


def _replay(run: OwnRun, group: SignedGroup, folders: list[Path], request: ReplayRequest) -> Verdict:
    if not request.confine:
        return _replayed(run, group, folders, request, Protection(asked=False), None)
    with closing(Starter({TOKENIZER: tokenizer_program()})) as starter:
        readable = tuple(folder.resolve() for folder in folders if folder.is_dir())
        protection = confine_files(run.directory.parent.resolve(), readable)
        return _replayed(run, group, folders, request, protection, starter.launch(TOKENIZER))


def _replayed(
    run: OwnRun,
    group: SignedGroup,
    folders: list[Path],
    request: ReplayRequest,
    protection: Protection,
    launch: Launch | None,
) -> Verdict:
    find_policy(folders, run, group.group.policy, group.group.version)  # before torch is imported for nothing
    say("importing torch")

    from p2prl.config.roles import prepare_replay
    from p2prl.models.hardware.device_choice import open_device, use_threads

    device = open_device(request.device)
    use_threads(request.threads)

    def make_tools(run: OwnRun, files: dict[str, Path]) -> ReplayTools:
        return prepare_replay(run.manifest, files, run=run.run, device=device, scores=False, launch_tokenizer=launch)

    say(str(confine_calls(protection) if protection.asked else protection))
    say(f"replaying {counted(sum(len(each.tokens) // 4 for each in group.group.completions), 'token')} on {device}")
    return replay_group(run, group, folders, make_tools)


def _document(group: OwnGroup, verdict: Verdict, code: str, sentence: str) -> dict[str, object]:
    return {
        "group": group.digest.hex(),
        "version": verdict.version,
        "passed": verdict.passed,
        "reason": verdict.reason,
        "tokens": verdict.tokens,
        "mismatched": verdict.mismatched,
        "worst_margin": verdict.worst_margin,
        "learner_state": group.state,
        "learner_reason": group.reason,
        "agreement": code,
        "meaning": sentence,
    }


def _lines(document: dict[str, Any]) -> list[str]:
    outcome = "passed" if document["passed"] else f"failed ({document['reason']})"
    reason = f" ({document['learner_reason']})" if document["learner_reason"] else ""
    tokens = f"{counted(document['tokens'], 'token')} of version {document['version']}, {document['mismatched']:,} off"
    return [
        f"Group      {document['group']}",
        f"Replay     {outcome}: {tokens}, worst margin {document['worst_margin']:.3g} nats",
        f"Learner    {document['learner_state']}{reason}",
        f"Compared   {document['meaning']}",
    ]
