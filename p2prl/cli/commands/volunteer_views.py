"""`p2prl top`, `p2prl watch` and `p2prl me`: a volunteer looks at what its machine does, makes and has earned."""

from __future__ import annotations

from typing import Annotated

import typer

from p2prl.cli.options import AsJson, Home

Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's name or join link. Default: the newest rollout of any run."),
]
Follow = Annotated[bool, typer.Option("--follow", help="Go on with each new rollout, until Ctrl-C.")]


def top(home: Home = None) -> None:
    """Show the workers of this machine on the whole terminal, and pause, resume or finish them by a key."""
    from p2prl.cli.commands.top_screen import run_top

    run_top(home)


def watch(run: Run = "", follow: Follow = False, home: Home = None, as_json: AsJson = False) -> None:
    """Show a rollout that this machine has just made: the prompt, its answers, and what each was worth."""
    from p2prl.cli.commands.watch_rollouts import watch_command

    watch_command(run, follow=follow, home=home, as_json=as_json)


def me(home: Home = None, as_json: AsJson = False) -> None:
    """Show what this machine has contributed to all its runs."""
    from p2prl.cli.commands.own_contribution import contribution_command

    contribution_command(home=home, as_json=as_json)
