"""`p2prl pause`, `resume`, `finish`, `stop`, `limits` and `config`: the owner's word to the workers of this machine."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from p2prl.cli.options import AsJson, Home

Seat = Annotated[str, typer.Option("--seat", help="One worker's folder, as seat-1. Default: all that run.")]


def pause(
    duration: Annotated[str, typer.Option("--for", help="How long, as 30m or 2h. Default: until p2prl resume.")] = "",
    keep_relaying: Annotated[
        bool, typer.Option("--keep-relaying", help="Go on uploading weights to others meanwhile.")
    ] = False,
    seat: Seat = "",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Pause the workers of this machine and free their memory, until the time is over or p2prl resume."""
    from p2prl.cli.commands.controls_send import pause_workers

    pause_workers(duration, keep_relaying=keep_relaying or None, seat=seat, home=home, as_json=as_json)


def resume(seat: Seat = "", home: Home = None, as_json: AsJson = False) -> None:
    """End a pause."""
    from p2prl.cli.commands.controls_send import tell_workers
    from p2prl.controls.messages import ResumeRequest

    tell_workers(ResumeRequest(), seat=seat, home=home, as_json=as_json)


def finish(seat: Seat = "", home: Home = None, as_json: AsJson = False) -> None:
    """Have the workers complete the slots in flight and end, as one Ctrl-C does."""
    from p2prl.cli.commands.controls_send import tell_workers
    from p2prl.controls.messages import FinishRequest

    tell_workers(FinishRequest(), seat=seat, home=home, as_json=as_json)


def stop(seat: Seat = "", home: Home = None, as_json: AsJson = False) -> None:
    """Have the workers end now. Finished groups stay on disk, and are delivered at the next start."""
    from p2prl.cli.commands.controls_send import tell_workers
    from p2prl.controls.messages import StopRequest

    tell_workers(StopRequest(), seat=seat, home=home, as_json=as_json)


def limits_help() -> str:
    """The help of `p2prl limits`: each limit with a value as an example, what it means, and its default."""
    from p2prl.controls.limits import SPECS
    from p2prl.controls.quantities import OFF

    lines = (
        f"{spec.name}={shlex.quote(spec.example)}: {spec.meaning}"
        + ("" if spec.default == OFF else f" Default: {spec.default}.")
        for spec in SPECS
    )
    return "\n\n".join([limits.__doc__ or "", "The limits, with examples. Default: off.", "\b\n" + "\n".join(lines)])


def limits(
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Limits to set; NAME=default takes one back. None: show all."),
    ] = None,
    seat: Seat = "",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show the limits of this machine, or set some: running workers follow within two seconds, later ones too."""
    from p2prl.cli.commands.controls_send import limits_command

    limits_command(changes or [], seat=seat, home=home, as_json=as_json)


config_app = typer.Typer(no_args_is_help=True, help="The file of limits, and where each value comes from.")


def config_show(
    origin: Annotated[bool, typer.Option("--origin/--no-origin", help="Say where each value comes from.")] = True,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show what a worker that starts now would keep to."""
    from p2prl.cli.commands.controls_send import show_config

    show_config(origin=origin, home=home, as_json=as_json)


def config_init(home: Home = None, as_json: AsJson = False) -> None:
    """Write a file with every limit, explained and commented out, unless there is one."""
    from p2prl.cli.commands.controls_send import write_config

    write_config(home=home, as_json=as_json)
