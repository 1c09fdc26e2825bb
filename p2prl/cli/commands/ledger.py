"""`p2prl ledger`: verify a run's signed ledger from its first entry, or write it to a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from p2prl import exit_codes
from p2prl.cli.commands.open_ledger import await_current_ledger, ledger_of
from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, Home, Listen
from p2prl.cli.views.console import emit, say
from p2prl.plain_text import counted
from p2prl.protocol.identity import PeerId, peer_id_of, public_key_of
from p2prl.protocol.join_link import is_link
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.ledger.ledger_sources import LedgerSource
from p2prl.scoreboard.ledger_dump import verify_dump, verify_source, write_dump
from p2prl.scoreboard.ledger_recount import Recount

ledger_app = typer.Typer(no_args_is_help=True, help="Verify a run's signed ledger yourself.")


@ledger_app.command("verify", epilog=epilog("p2prl ledger verify"))
def verify(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A run folder, a join link in quotes, or a file written by `p2prl ledger dump`."
        ),
    ],
    validator: Annotated[
        str,
        typer.Option(
            "--validator",
            help="Of a file: it is the own ledger of the validator with this peer id. Default: it is the learner's.",
        ),
    ] = "",
    home: Home = None,
    listen: Listen = None,
    as_json: AsJson = False,
) -> None:
    """Follow the chain from its first entry, check every signature, and print the totals.

    Exits with 1 when it is broken, and when its head is not signed.
    """
    of_swarm = is_link(source)
    if of_swarm or Path(source).is_dir():
        with _current_ledger(source, home, listen) as ledger:
            result = verify_source(ledger)
        what = "the swarm" if of_swarm else f"the journal in folder {source}"
    else:
        result = verify_dump(Path(source), validator=public_key_of(PeerId(validator)) if validator else b"")
        what = f"the dump {source}"
    if as_json:
        emit(_recount_document(result))
    else:
        _show(result, what)
    if not result.is_whole:
        raise typer.Exit(exit_codes.UNEXPECTED)


@ledger_app.command("dump", epilog=epilog("p2prl ledger dump"))
def dump(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A run folder, or a join link in quotes.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    home: Home = None,
    listen: Listen = None,
    as_json: AsJson = False,
) -> None:
    """Write the ledger to one file that anyone can verify."""
    with _current_ledger(source, home, listen) as ledger:
        snapshot = ledger.snapshot()
        height = write_dump(ledger, out, snapshot=snapshot)
    signed = snapshot.signed_height is not None
    if as_json:
        emit({"entries": height, "signed": signed, "file": str(out)})
    else:
        say(f"{counted(height, 'entry', 'entries')} in {out}. Anyone can check it:  p2prl ledger verify {out}")
        if not signed:
            say(f"It holds {_NO_HEAD}.")
    if not signed:
        raise typer.Exit(exit_codes.UNEXPECTED)


_TOLD_EVERY = 5_000
"""Entries received from a swarm between two lines of progress: about ten seconds at the rate that peers answer."""


_NO_HEAD = "no head signed by the learner: entries may be missing, and nobody can tell"


@contextmanager
def _current_ledger(source: str, home: Path | None, listen: list[str] | None) -> Iterator[LedgerSource]:
    """The ledger of a run folder, or of a swarm once it has arrived."""
    told = 0

    def tell(height: int) -> None:
        nonlocal told
        if height >= told + _TOLD_EVERY:
            told = height
            say(f"{counted(height, 'entry', 'entries')} received …")

    with ledger_of(source, home, listen) as ledger:
        if is_link(source):
            say("asking the swarm for its ledger …")
            await_current_ledger(ledger, on_entries=tell)
        yield ledger


def _show(result: Recount, what: str) -> None:
    say(f"Source     {what}, of run {result.name} ({result.run_id[:16]}…)")
    whose = "a validator's own ledger" if result.is_validators else "the run's learner"
    say(f"Signed by  {display_name(result.signer)}, {peer_id_of(result.signer)}: {whose}")
    say(f"Chain      {counted(result.height, 'entry', 'entries')}; hash chain and every signature verified")
    say(f"Head       {_head_line(result)}")
    say(f"Seen by    {_witness_line(result)}")
    say(f"Root       {result.root}", unwrapped=True)
    for person in result.people:
        groups, tokens = person.verified_groups, person.verified_tokens
        sys.stdout.write(f"{person.handle:<24} {groups:>9,} groups {tokens:>13,} tokens\n")


def _head_line(result: Recount) -> str:
    if result.signed_height is None:
        return _NO_HEAD
    who = "the validator" if result.is_validators else "the learner"
    if result.unsigned:
        rest = f"the {result.unsigned:,} after them may be incomplete, or a stranger's"
        return f"{who} has signed the first {counted(result.signed_height, 'entry', 'entries')}; {rest}"
    end = ", and the end of the run" if result.finished else ""
    return f"{who} has signed the whole ledger{end}"


def _witness_line(result: Recount) -> str:
    """How many validators have countersigned the ledger."""
    seen = result.countersigned
    others = f"; {counted(seen.others, 'key')} without standing did too, which proves nothing" if seen.others else ""
    if not seen.validators:
        return f"no validator of standing has countersigned these entries{others}"
    who = f"{counted(seen.validators, 'validator')} of standing"
    whole = f"{seen.whole} of them all that the learner has signed" if seen.whole else "none of them the newest"
    return f"{who} countersigned these entries, {whole}, up to entry {seen.height:,}{others}"


def _recount_document(result: Recount) -> dict[str, object]:
    return {
        "run": result.run_id,
        "name": result.name,
        "signer": peer_id_of(result.signer),
        "validators_own": result.is_validators,
        "height": result.height,
        "root": result.root,
        "signed_height": result.signed_height,
        "whole": result.is_whole,
        "finished": result.finished,
        "countersigned": msgspec.to_builtins(result.countersigned),
        "totals": msgspec.to_builtins(result.totals),
        "people": msgspec.to_builtins(result.people),
        "validators": msgspec.to_builtins(result.validators),
    }
