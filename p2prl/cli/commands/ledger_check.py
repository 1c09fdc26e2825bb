"""Verify a ledger from its first entry, or write it to a file."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from p2prl.cli.commands.open_ledger import ledger_of_run
from p2prl.cli.views.console import emit, say
from p2prl.scoreboard.ledger_dump import verify_dump, verify_source, write_dump
from p2prl.scoreboard.ledger_recount import Recount

_NO_HEAD = (
    "none signed by the learner in this source, so the newest entries may be missing; "
    "the dump that a board of the running swarm offers holds one: p2prl board LINK"
)


def verify_command(source: Path, *, as_json: bool) -> None:
    """Verify the ledger of a run folder or of a dump, and print its totals."""
    if source.is_dir():
        with ledger_of_run(source) as ledger:
            result = verify_source(ledger)
        what = f"the journal of run folder {source}"
    else:
        result = verify_dump(source)
        what = f"the dump {source}"
    if as_json:
        emit(_recount_document(result))
        return
    say(f"Source     {what}, of run {result.name} ({result.run_id[:16]}…)")
    say(f"Chain      {result.height:,} entries; hash chain and every signature verified")
    height = result.signed_height
    signed = _NO_HEAD if height is None else f"the learner has signed the first {height:,}"
    say(f"Head       {signed}")
    say(f"Root       {result.root}", unwrapped=True)
    for person in result.people:
        groups, tokens = person.verified_groups, person.verified_tokens
        sys.stdout.write(f"{person.handle:<24} {groups:>9,} groups {tokens:>13,} tokens\n")


def dump_command(run: Path, out: Path, *, as_json: bool) -> None:
    """Write a run's ledger to one file."""
    with ledger_of_run(run) as ledger:
        height = write_dump(ledger, out)
    if as_json:
        emit({"entries": height, "file": str(out)})
    else:
        say(f"{height:,} entries in {out}. Anyone can check it:  p2prl ledger verify {out}")


def _recount_document(result: Recount) -> dict[str, object]:
    return {
        "run": result.run_id,
        "name": result.name,
        "height": result.height,
        "root": result.root,
        "signed_height": result.signed_height,
        "totals": msgspec.to_builtins(result.totals),
        "people": msgspec.to_builtins(result.people),
        "validators": msgspec.to_builtins(result.validators),
    }
