"""A learner with delayed rollout groups: `p2prl learn` with a delay distribution.

    python -m p2prl_lab.testing.delayed_learner RUN [options of p2prl learn] --delay const:64 --arrive U,V,W:32

The delay is counted in updates' worth of groups (`p2prl_lab.testing.delayed_buffer`) and written as in
`p2prl bench staleness --delays`. With --arrive, groups of task U alone are taken until update 32, of U and V until
update 64, and of all three from then on.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import typer

from p2prl.cli.commands.learn import learn
from p2prl.cli.entry import run_app
from p2prl.config.new_run import open_run
from p2prl.errors import ConfigError
from p2prl.learner import assembly
from p2prl_lab.bench.staleness.staleness_distributions import StalenessDistribution, parse_staleness
from p2prl_lab.testing.delayed_buffer import DelayedBuffer, TaskArrival

_PROGRAM = "p2prl_lab.testing.delayed_learner"


def main(arguments: list[str]) -> None:
    """Learn from delayed groups."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, add_help=False)
    parser.add_argument("--delay", default="const:0")
    parser.add_argument("--arrive", type=TaskArrival.parse, metavar="TASK,TASK:PERIOD")
    named, rest = parser.parse_known_args(arguments)
    try:
        delay = parse_staleness(named.delay)
        groups = open_run(Path(rest[0])).settings.learner.groups_per_update if rest else 1
    except ConfigError as error:
        parser.error(f"{error}. {error.remedy}")
    draw = groups_drawn(delay, groups_per_update=groups)
    assembly.RolloutBuffer = partial(DelayedBuffer, draw, named.arrive)  # type: ignore[assignment, attr-defined]
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(learn)
    run_app(app, program=_PROGRAM, arguments=rest)


def groups_drawn(delay: StalenessDistribution, *, groups_per_update: int) -> Callable[[], int]:
    """Delays of groups: a random number of updates' worth of groups."""
    rng = random.Random(delay.text)
    return lambda: groups_per_update * delay.draw(rng.random(), delay.longest)


if __name__ == "__main__":
    main(sys.argv[1:])
