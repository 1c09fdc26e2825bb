"""The `p2prl` application: its commands by help panel, each in a module that is imported when the command runs.

So `p2prl --help`, a completion and a wrong option cost no more than this table, and a command imports what it needs.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from p2prl.cli.examples import epilog

VOLUNTEER, OPERATE, INSPECT = "Volunteer", "Operate", "Inspect"


@dataclass(frozen=True, slots=True)
class Listed:
    """A command, or a group of commands, as `p2prl --help` lists it."""

    panel: str
    place: str
    """Module of `p2prl.cli.commands`, and the function or the `typer.Typer` there."""
    summary: str
    """The first paragraph of its help page, which a test holds equal to the command's own."""


COMMANDS = {
    "join": Listed(VOLUNTEER, "join:join", "Lend this machine to a run, until Ctrl-C or its end."),
    "seed": Listed(VOLUNTEER, "seed:seed", "Upload a run's weights to its volunteers, without a GPU."),
    "validate": Listed(VOLUNTEER, "validate:validate", "Check the work of volunteers, and sign verdicts."),
    "pause": Listed(
        VOLUNTEER,
        "controls:pause",
        "Pause the workers of this machine and free their memory, until the time is over or p2prl resume.",
    ),
    "resume": Listed(VOLUNTEER, "controls:resume", "End a pause."),
    "finish": Listed(
        VOLUNTEER, "controls:finish", "Have the workers complete the slots in flight and end, as one Ctrl-C does."
    ),
    "stop": Listed(
        VOLUNTEER,
        "controls:stop",
        "Have the workers end now. Finished groups stay on disk, and are delivered at the next start.",
    ),
    "limits": Listed(
        VOLUNTEER,
        "limits:limits",
        "Show the limits of this machine, or set some: running workers follow within two seconds, later ones too.",
    ),
    "top": Listed(
        VOLUNTEER,
        "top:top",
        "Show the workers of this machine on the whole terminal, and pause, resume or finish them by a key.",
    ),
    "watch": Listed(
        VOLUNTEER,
        "watch:watch",
        "Show a rollout that this machine has just made: the prompt, its answers, and what each was worth.",
    ),
    "runs": Listed(
        VOLUNTEER,
        "runs:runs_app",
        "Runs that are listed in public: which this machine could serve, and which it may.",
    ),
    "me": Listed(VOLUNTEER, "me:me", "Show what this machine has contributed to all its runs."),
    "doctor": Listed(
        VOLUNTEER,
        "doctor:doctor",
        "Check this machine: version, clock, disk, memory, keys, driver, device and network. "
        "Exit code 4 for a failure.",
    ),
    "update": Listed(
        VOLUNTEER,
        "update:update",
        "Show the command that updates this program; with --check, whether there is something newer.",
    ),
    "config": Listed(VOLUNTEER, "limits:config_app", "The file of limits, and where each value comes from."),
    "service": Listed(VOLUNTEER, "service:service_app", "A user's service that keeps a worker running."),
    "key": Listed(VOLUNTEER, "key:key_app", "Your keys: show, back up, restore; several machines."),
    "team": Listed(VOLUNTEER, "team:team_app", "Teams: your work counts for a team as well as for you."),
    "rollouts": Listed(
        INSPECT,
        "rollouts:rollouts",
        "Show rollouts that a run was trained on: prompt, completion, reward by part, advantage and staleness.",
    ),
    "init": Listed(OPERATE, "init:init", "Create a run: model, tasks, key and signed manifest."),
    "plan": Listed(
        OPERATE,
        "plan:plan",
        "Forecast whether machines keep a learner at work: a fleet's before a run, or a run's own volunteers.",
    ),
    "learn": Listed(OPERATE, "learn:learn", "Train a run, and print its join link."),
    "promote": Listed(
        OPERATE,
        "promote:promote",
        "Make a standby learner's folder the run's own, once the learner's machine is gone for good.",
    ),
    "demo": Listed(OPERATE, "demo:demo", "Run a whole swarm on this machine."),
    "sim": Listed(OPERATE, "sim:sim", "Simulate a swarm in one process on virtual time."),
    "bench": Listed(OPERATE, "bench:bench_app", "Benchmarks that anyone can rerun."),
    "board": Listed(INSPECT, "board:board", "Serve a run's leaderboard as a web page."),
    "index": Listed(OPERATE, "index:index_app", "An index of runs: learners list theirs, volunteers find them."),
    "certificate": Listed(
        INSPECT,
        "certificate:certificate",
        "Make a certificate of a contributor's checked work to print or to show, or check one.",
    ),
    "status": Listed(INSPECT, "status:status", "Show what this machine's workers, or a run's learner, are doing."),
    "metrics": Listed(
        INSPECT, "metrics:metrics", "Serve metrics of this machine's workers to Prometheus, on 127.0.0.1 alone."
    ),
    "eval": Listed(
        INSPECT, "eval:eval_", "Measure a checkpoint on prompts it is never trained on: greedy accuracy, and pass@k."
    ),
    "export": Listed(
        INSPECT,
        "export:export",
        "Write a checkpoint as a directory that transformers and vLLM load, with a model card.",
    ),
    "receipts": Listed(INSPECT, "receipts:receipts_app", "Why your groups earned what they earned."),
    "ledger": Listed(INSPECT, "ledger:ledger_app", "Verify a run's signed ledger yourself."),
}


class _Commands(TyperGroup):
    """Lists commands by their summaries, and imports one when the command line calls it. Typer suggests what a mistyped
    one may have meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments call."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if listed is None or name is None else load(name), rest


def load(name: str) -> Any:
    """Import a command, or a group of commands."""
    module, _, attribute = COMMANDS[name].place.partition(":")
    found = getattr(importlib.import_module(f"p2prl.cli.commands.{module}"), attribute)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, rich_help_panel=COMMANDS[name].panel)
        return vars(typer.main.get_command(alone))["commands"][name]
    alone.command(name, rich_help_panel=COMMANDS[name].panel, epilog=epilog(f"p2prl {name}"))(found)
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Commands,
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


def _line() -> None:
    """A line of the help page."""


for _name, _listed in COMMANDS.items():
    app.command(_name, help=_listed.summary, rich_help_panel=_listed.panel)(_line)
