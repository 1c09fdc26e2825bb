"""A learner that rejects honest work, over sockets: `p2prl learn` that calls the right groups of its victims wrong.

    python -m p2prl_lab.testing.lying_learner RUN [options of p2prl learn] --victims 1

Victims are the first volunteers whose groups it checks; by default everybody is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Container
from dataclasses import dataclass, field

import typer

from p2prl.cli.commands.learn import make_learn
from p2prl.cli.entry import run_app
from p2prl.learner.assembly import Judges
from p2prl_lab.sim.lying_learner import LyingReplayer

_PROGRAM = "p2prl_lab.testing.lying_learner"


@dataclass
class FirstSeen(Container[bytes]):
    """The first `most` peers that anybody asks about."""

    most: int
    _seen: set[bytes] = field(default_factory=set)

    def __contains__(self, peer: object) -> bool:
        if isinstance(peer, bytes) and len(self._seen) < self.most:
            self._seen.add(peer)
        return peer in self._seen


def main(arguments: list[str]) -> None:
    """Reject right groups."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, add_help=False)
    parser.add_argument("--victims", type=int, default=1_000_000)
    named, rest = parser.parse_known_args(arguments)
    lying = type("Lying", (LyingReplayer,), {"victims": FirstSeen(named.victims)})
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(make_learn(judges=Judges(replayer=lying)))
    run_app(app, program=_PROGRAM, arguments=rest)


if __name__ == "__main__":
    main(sys.argv[1:])
