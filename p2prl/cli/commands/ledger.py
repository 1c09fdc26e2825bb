"""`p2prl ledger`: verify a run's signed ledger, or write it to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, Home, Listen

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
    from p2prl.cli.commands.ledger_check import verify_command

    verify_command(source, home=home, listen=listen, as_json=as_json, validator=validator)


@ledger_app.command("dump", epilog=epilog("p2prl ledger dump"))
def dump(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A run folder, or a join link in quotes.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    home: Home = None,
    listen: Listen = None,
    as_json: AsJson = False,
) -> None:
    """Write the ledger to one file that anyone can verify."""
    from p2prl.cli.commands.ledger_check import dump_command

    dump_command(source, out, home=home, listen=listen, as_json=as_json)
