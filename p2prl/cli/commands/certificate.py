"""`p2prl certificate`: a signed certificate of a contributor's work, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.options import AsJson, Home, Listen


def certificate(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A run folder, or a join link in quotes.")],
    contributor: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Peer id. Without it, the owner of a key on this machine."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="File to write; its ending chooses between .png and .pdf.")] = Path(
        "certificate.png"
    ),
    check: Annotated[
        Path | None,
        typer.Option("--check", help="Check this certificate against the ledger instead. Default: make one."),
    ] = None,
    home: Home = None,
    listen: Listen = None,
    as_json: AsJson = False,
) -> None:
    """Make a certificate of a contributor's checked work to print or to show, or check one.

    In a run folder the learner signs it; with a join link, a key on this machine that the work was done with.
    """
    from p2prl.cli.commands.certificate_make import certificate_command, check_command

    if check is not None:
        check_command(source, check, home=home, listen=listen, as_json=as_json)
        return
    certificate_command(source, contributor, out=out, home=home, listen=listen, as_json=as_json)
