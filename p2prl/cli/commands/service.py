"""`p2prl service`: a user's service that keeps a worker running after logins and restarts."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from p2prl.cli.options import AsJson, Home, Link

Manager = Annotated[
    str, typer.Option("--manager", help="systemd or launchd. Default: systemd on Linux, launchd on macOS.")
]
Command = Annotated[str, typer.Option("--run", help="The worker to keep running: join, seed or validate.")]
Options = Annotated[
    str, typer.Option("--options", help="Options of that command, as one text: '--device cuda:1'. Default: none.")
]
User = Annotated[bool, typer.Option("--user", help="For this user, which is the only way: p2prl never needs root.")]

service_app = typer.Typer(no_args_is_help=True, help="A user's service that keeps a worker running.")


def service_print(
    context: typer.Context,
    link: Link,
    run: Command = "join",
    options: Options = "",
    manager: Manager = "",
    home: Home = None,
) -> None:
    """Print the service file and the commands that start it. Changes nothing."""
    from p2prl.cli.commands.service_files import check_options, planned_service

    check_options(context, run, options)
    plan = planned_service(link, run=run, options=options, manager=manager, home=home)
    sys.stdout.write(plan.text)
    sys.stdout.flush()
    for line in plan.instructions():
        typer.echo(line, err=True)


def service_install(
    context: typer.Context,
    link: Link,
    run: Command = "join",
    options: Options = "",
    manager: Manager = "",
    user: User = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Write the service file for this user, and print the commands that start it. Nothing is started."""
    from p2prl.cli.commands.service_files import check_options, install_service, planned_service

    check_options(context, run, options)
    plan = planned_service(link, run=run, options=options, manager=manager, home=home)
    install_service(plan, user=user, as_json=as_json)
