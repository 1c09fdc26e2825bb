"""`p2prl receipts`: why this machine's groups earned what they earned."""

from __future__ import annotations

from typing import Annotated

import typer

from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, Device, Home, Listen, NoConfinement, Threads

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
    run: OwnRunName,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Groups to show, the newest first.")] = 20,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """List this machine's groups: state, reason, credit, time and policy version. Asks nobody."""
    from p2prl.cli.commands.receipts_read import list_command

    list_command(run, limit=limit, home=home, as_json=as_json)


@receipts_app.command("explain", epilog=epilog("p2prl receipts explain"))
def explain(
    run: OwnRunName,
    digest: GroupName,
    live: Annotated[
        bool, typer.Option("--live", help="Also ask the swarm for its ledger; RUN is a join link then.")
    ] = False,
    home: Home = None,
    listen: Listen = None,
    as_json: AsJson = False,
) -> None:
    """Say why a group earned what it earned, who judged it, and what to do about it."""
    from p2prl.cli.commands.receipts_read import explain_command

    explain_command(run, digest, live=live, home=home, listen=listen, as_json=as_json)


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
