"""A dishonest validator: `p2prl validate` with a judge that cheats.

    python -m p2prl_lab.testing.cheating_validator LINK [options of p2prl validate] [--adversary lazy | lying]

For experiments with validation on runs of your own.
"""

from __future__ import annotations

import argparse
import sys

import typer

from p2prl.cli.commands.validate import make_validate
from p2prl.cli.entry import run_app
from p2prl_lab.sim.dishonest_validators import DISHONEST_JUDGES

_PROGRAM = "p2prl_lab.testing.cheating_validator"


def main(arguments: list[str]) -> None:
    """Validate with the adversary named in `arguments`. One that copies is lazy here: it is told of no verdicts."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, add_help=False)
    parser.add_argument("--adversary", choices=sorted(DISHONEST_JUDGES), default="lazy")
    named, rest = parser.parse_known_args(arguments)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(make_validate(replace_judge=DISHONEST_JUDGES[named.adversary]))
    run_app(app, program=_PROGRAM, arguments=rest)


if __name__ == "__main__":
    main(sys.argv[1:])
