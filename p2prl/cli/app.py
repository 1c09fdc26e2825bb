"""The `p2prl` application: registers the commands of `p2prl.cli.commands` under their help panels.

A command's implementation is imported when the command runs, so `p2prl --help` needs no torch.
"""

from __future__ import annotations

from typing import Annotated

import typer

from p2prl.cli.commands.bench import bench_app
from p2prl.cli.commands.board import board
from p2prl.cli.commands.certificate import certificate
from p2prl.cli.commands.controls import (
    config_app,
    config_init,
    config_show,
    finish,
    limits,
    limits_help,
    pause,
    resume,
    stop,
)
from p2prl.cli.commands.demo import demo
from p2prl.cli.commands.doctor import doctor
from p2prl.cli.commands.eval import eval_
from p2prl.cli.commands.export import export
from p2prl.cli.commands.init import init
from p2prl.cli.commands.join import make_join
from p2prl.cli.commands.key import key_app
from p2prl.cli.commands.learn import make_learn
from p2prl.cli.commands.ledger import ledger_app
from p2prl.cli.commands.metrics import metrics
from p2prl.cli.commands.receipts import receipts_app
from p2prl.cli.commands.seed import seed
from p2prl.cli.commands.service import service_app, service_install, service_print
from p2prl.cli.commands.sim import sim
from p2prl.cli.commands.status import status
from p2prl.cli.commands.team import team_app
from p2prl.cli.commands.update import update
from p2prl.cli.commands.validate import validate
from p2prl.cli.commands.volunteer_views import me, top, watch
from p2prl.cli.examples import epilog

VOLUNTEER, OPERATE, INSPECT = "Volunteer", "Operate", "Inspect"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Lend a GPU to a shared training run, or start one. No account, no token, no open port.",
    epilog=epilog("p2prl"),
)


def _print_version(asked: bool) -> None:
    if asked:
        from p2prl import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Parse the options before any command."""


app.command("join", rich_help_panel=VOLUNTEER, epilog=epilog("p2prl join"))(make_join())
app.command("seed", rich_help_panel=VOLUNTEER, epilog=epilog("p2prl seed"))(seed)
app.command("validate", rich_help_panel=VOLUNTEER, epilog=epilog("p2prl validate"))(validate)
for _name, _command in (("pause", pause), ("resume", resume), ("finish", finish), ("stop", stop)):
    app.command(_name, rich_help_panel=VOLUNTEER, epilog=epilog(f"p2prl {_name}"))(_command)
app.command("limits", help=limits_help(), rich_help_panel=VOLUNTEER, epilog=epilog("p2prl limits"))(limits)
for _name, _view in (("top", top), ("watch", watch), ("me", me)):
    app.command(_name, rich_help_panel=VOLUNTEER, epilog=epilog(f"p2prl {_name}"))(_view)
app.command("doctor", rich_help_panel=VOLUNTEER, epilog=epilog("p2prl doctor"))(doctor)
app.command("update", rich_help_panel=VOLUNTEER, epilog=epilog("p2prl update"))(update)
config_app.command("show", epilog=epilog("p2prl config show"))(config_show)
config_app.command("init", epilog=epilog("p2prl config init"))(config_init)
app.add_typer(config_app, name="config", rich_help_panel=VOLUNTEER)
service_app.command("print", epilog=epilog("p2prl service print"))(service_print)
service_app.command("install", epilog=epilog("p2prl service install"))(service_install)
app.add_typer(service_app, name="service", rich_help_panel=VOLUNTEER)
app.add_typer(key_app, name="key", rich_help_panel=VOLUNTEER)
app.add_typer(team_app, name="team", rich_help_panel=VOLUNTEER)
app.command("init", rich_help_panel=OPERATE, epilog=epilog("p2prl init"))(init)
app.command("learn", rich_help_panel=OPERATE, epilog=epilog("p2prl learn"))(make_learn())
app.command("demo", rich_help_panel=OPERATE, epilog=epilog("p2prl demo"))(demo)
app.command("sim", rich_help_panel=OPERATE, epilog=epilog("p2prl sim"))(sim)
app.add_typer(bench_app, name="bench", rich_help_panel=OPERATE)
app.command("board", rich_help_panel=INSPECT, epilog=epilog("p2prl board"))(board)
app.command("certificate", rich_help_panel=INSPECT, epilog=epilog("p2prl certificate"))(certificate)
app.command("status", rich_help_panel=INSPECT, epilog=epilog("p2prl status"))(status)
app.command("metrics", rich_help_panel=INSPECT, epilog=epilog("p2prl metrics"))(metrics)
app.command("eval", rich_help_panel=INSPECT, epilog=epilog("p2prl eval"))(eval_)
app.command("export", rich_help_panel=INSPECT, epilog=epilog("p2prl export"))(export)
app.add_typer(receipts_app, name="receipts", rich_help_panel=INSPECT)
app.add_typer(ledger_app, name="ledger", rich_help_panel=INSPECT)
