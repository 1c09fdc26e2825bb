"""A learner with delayed rollout groups: `p2prl learn` with a delay distribution.

    python -m p2prl_lab.testing.delayed_learner RUN [options of p2prl learn] --delay const:64

The delay is counted in updates' worth of groups (`p2prl_lab.testing.delayed_port`) and written as in
`p2prl bench staleness --delays`.
"""

from __future__ import annotations

import argparse
import random
import sys
from typing import TYPE_CHECKING

import typer

from p2prl.cli.commands.learn import make_learn
from p2prl.cli.entry import run_app
from p2prl.errors import ConfigError
from p2prl.net.process.bridge import NetworkPort
from p2prl_lab.bench.staleness.staleness_distributions import StalenessDistribution, parse_staleness
from p2prl_lab.testing.delayed_port import DelayedPort

if TYPE_CHECKING:
    from p2prl.config.new_run import RunFolder

_PROGRAM = "p2prl_lab.testing.delayed_learner"


def main(arguments: list[str]) -> None:
    """Learn from delayed groups."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, add_help=False)
    parser.add_argument("--delay", default="const:0")
    named, rest = parser.parse_known_args(arguments)
    try:
        delay = parse_staleness(named.delay)
    except ConfigError as error:
        parser.error(f"{error}. {error.remedy}")

    def delayed(network: NetworkPort, folder: RunFolder) -> NetworkPort:
        return delayed_port(network, delay, groups_per_update=folder.settings.learner.groups_per_update)

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(make_learn(wrap_network=delayed))
    run_app(app, program=_PROGRAM, arguments=rest)


def delayed_port(network: NetworkPort, delay: StalenessDistribution, *, groups_per_update: int) -> DelayedPort:
    """Wrap the network to delay each group by a random number of updates' worth of groups."""
    rng = random.Random(delay.text)
    return DelayedPort(network, lambda: groups_per_update * delay.draw(rng.random(), delay.longest))


if __name__ == "__main__":
    main(sys.argv[1:])
