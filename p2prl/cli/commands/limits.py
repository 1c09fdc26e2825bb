"""`p2prl limits` and `config`: limits of this machine, for the workers that run and for those to come."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from typing import Annotated

import typer

from p2prl.cli.commands.controls import Card, Seat, answers, chosen_seat, documents, told
from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, Home
from p2prl.cli.views.console import emit, say, show
from p2prl.cli.views.status_view import limit_lines
from p2prl.config.owner_limits import config_file, config_text, load_limits, remember_limits
from p2prl.config.worker_folder import default_home
from p2prl.controls.limits import SPECS
from p2prl.controls.messages import Answer, LimitShown, LimitsRequest, StatusRequest
from p2prl.controls.owner_values import OFF
from p2prl.disk_full import write_error
from p2prl.errors import ConfigError

config_app = typer.Typer(no_args_is_help=True, help="The file of limits, and where each value comes from.")


def limits_help() -> str:
    """The help of `p2prl limits`: each limit with a value as an example, what it means, and its default."""

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
    device: Card = "",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show the limits of this machine, or set some: running workers follow within two seconds, later ones too."""
    base = home or default_home()
    seat = chosen_seat(seat, device, base)
    given = changes or []
    wanted = _parsed(given[1:] if given[:1] == ["set"] else given)
    if wanted and not seat:
        remember_limits(base, wanted)
    request = LimitsRequest(changes=wanted) if wanted else StatusRequest()
    heard = told(request, seat=seat, home=base) if seat else answers(request, seat=seat, home=base)
    following = load_limits(base).document()
    if as_json:
        emit({"limits": following, "workers": documents(heard.answers), "time": time.time()})
        heard.raise_first()
        return
    if heard.answers:
        for workers, shown in _alike(heard.answers):
            if len(heard.answers) > 1:
                show(f"{', '.join(workers)}:")
            for line in limit_lines(shown):
                show(line, unwrapped=True)
    else:
        for line in limit_lines(following):
            show(line, unwrapped=True)
    if wanted and seat:
        say("Followed by this worker until it ends.")
    elif wanted:
        say("Kept, and followed by what runs now." if heard.answers else "Kept for the next start: no worker runs.")
    elif not heard.answers:
        say("No worker runs; the next one keeps to these.")
    for line in dict.fromkeys(line for answer in heard.answers.values() for line in answer.unread):
        names = ", ".join(name for name, answer in heard.answers.items() if line in answer.unread)
        say(f"{names}: {line}", unwrapped=True)
    heard.raise_first()


@config_app.command("show", epilog=epilog("p2prl config show"))
def config_show(
    origin: Annotated[bool, typer.Option("--origin/--no-origin", help="Say where each value comes from.")] = True,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show what a worker that starts now would keep to."""
    base = home or default_home()
    limits = load_limits(base).document()
    if as_json:
        emit({"file": str(config_file(base)), "limits": limits})
        return
    exists = config_file(base).exists()
    say(f"{config_file(base)}{'' if exists else ' (not there; p2prl config init writes one)'}", unwrapped=True)
    for line in limit_lines(limits, origin=origin):
        show(line, unwrapped=True)


@config_app.command("init", epilog=epilog("p2prl config init"))
def config_init(home: Home = None, as_json: AsJson = False) -> None:
    """Write a file with every limit, explained and commented out, unless there is one."""
    path = config_file(home or default_home())
    if path.exists():
        raise ConfigError(f"{path} is there already", remedy="Edit it, or delete it first.")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(config_text(), encoding="utf-8")
    except OSError as error:
        raise write_error(error, path) from error
    if as_json:
        emit({"file": str(path)})
    else:
        say(f"Wrote {path}. Edit it; workers read it when they start.", unwrapped=True)


def _alike(answers: dict[str, Answer]) -> list[tuple[list[str], Mapping[str, LimitShown]]]:
    """Limits with the names of the workers that have them."""
    groups: list[tuple[list[str], Mapping[str, LimitShown]]] = []
    for name, answer in answers.items():
        same = next((names for names, limits in groups if limits == answer.limits), None)
        if same is None:
            groups.append(([name], answer.limits))
        else:
            same.append(name)
    return groups


def _parsed(changes: list[str]) -> dict[str, str]:
    wanted = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not text:
            raise ConfigError(f"{change[:60]!r} is not NAME=VALUE", remedy="For example p2prl limits gpu.temp=75C.")
        if name.strip() in wanted:
            raise ConfigError(f"{name.strip()[:60]} is given twice", remedy="Keep the one that you mean.")
        wanted[name.strip()] = text.strip()
    return wanted


limits.__doc__ = limits_help()
