"""`p2prl ledger`: verify a run's signed ledger, or write it to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, RunFolderPath

ledger_app = typer.Typer(no_args_is_help=True, help="Verify a run's signed ledger yourself.")


@ledger_app.command("verify", epilog=epilog("p2prl ledger verify"))
def verify(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A run folder, or a file written by `p2prl ledger dump`.")
    ],
    as_json: AsJson = False,
) -> None:
    """Follow the chain from its first entry, check every signature, and print the totals."""
    from p2prl.cli.commands.ledger_check import verify_command

    verify_command(source, as_json=as_json)


@ledger_app.command("dump", epilog=epilog("p2prl ledger dump"))
def dump(
    run: RunFolderPath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    as_json: AsJson = False,
) -> None:
    """Write the ledger to one file that anyone can verify."""
    from p2prl.cli.commands.ledger_check import dump_command

    dump_command(run, out, as_json=as_json)
