"""A volunteer whose graphics card fails: `p2prl join` with a sampler that reports what a driver's reset looks like.

python -m p2prl_lab.testing.failing_card LINK [options of p2prl join] [--after-tokens 2000]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
import typer

from p2prl.cli.commands.join import make_join
from p2prl.cli.entry import run_app
from p2prl.models.sampler_port import Sampler, StepResult

_PROGRAM = "p2prl_lab.testing.failing_card"

_REPORT = """\
CUDA error: unspecified launch failure
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace may be incorrect."""
"""A launch failure: the context on the device is lost, and every further call of the process fails."""


class FailingSampler:
    """Samples with another sampler until its tokens are used up."""

    def __init__(self, sampler: Sampler, tokens: int) -> None:
        self._sampler = sampler
        self._left = tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def step(self) -> StepResult:
        """As the sampler's, while there are tokens left."""
        if self._left <= 0:
            raise torch.AcceleratorError(_REPORT)
        result = self._sampler.step()
        self._left -= result.tokens
        return result


def failing(tokens: int) -> Callable[[Sampler], Sampler]:
    """Wrapper that makes a sampler fail after this number of tokens."""
    return lambda sampler: FailingSampler(sampler, tokens)


def main(arguments: list[str]) -> None:
    """Join until the card fails."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, add_help=False)
    parser.add_argument("--after-tokens", type=int, default=2_000)
    named, rest = parser.parse_known_args(arguments)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(make_join(wrap_sampler=failing(named.after_tokens)))
    run_app(app, program=_PROGRAM, arguments=rest)


if __name__ == "__main__":
    main(sys.argv[1:])
