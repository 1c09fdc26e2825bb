"""A dishonest volunteer: `p2prl join` with a sampler that cheats, or a network that withholds groups.

    python -m p2prl.testing.cheating_volunteer LINK [options of p2prl join] [--adversary fabricate]
    python -m p2prl.testing.cheating_volunteer LINK [options of p2prl join] --select lowest-reward

For experiments with validation on runs of your own.
"""

from __future__ import annotations

import argparse
import sys

import typer

from p2prl.cli.commands.join import make_join
from p2prl.cli.entry import run_app
from p2prl.sim.selecting_port import CHOICES, selecting
from p2prl.testing.adversaries import ADVERSARIES

_PROGRAM = "p2prl.testing.cheating_volunteer"


def main(arguments: list[str]) -> None:
    """Join with the adversary named in `arguments`."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, add_help=False)
    parser.add_argument("--adversary", choices=sorted(ADVERSARIES), default="fabricate")
    parser.add_argument("--select", choices=sorted(CHOICES), help="deliver one group of eight, chosen by this")
    named, rest = parser.parse_known_args(arguments)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    if named.select:
        app.command()(make_join(wrap_network=selecting(named.select)))
    else:
        app.command()(make_join(wrap_sampler=ADVERSARIES[named.adversary]))
    run_app(app, program=_PROGRAM, arguments=rest)


if __name__ == "__main__":
    main(sys.argv[1:])
