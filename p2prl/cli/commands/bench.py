"""`p2prl bench`: measurements of this machine, and the benchmarks of installed packages, such as the laboratory's."""

from __future__ import annotations

from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from p2prl.cli.benchmark import Benchmark
from p2prl.errors import ConfigError
from p2prl.plugins import Registry

_OWN = ("machine", "engine", "step", "ranks", "publish")

BENCHMARKS = Registry(
    "p2prl.benchmarks",
    kind="benchmark",
    builtin={name: f"p2prl.cli.commands.bench_{name}:BENCHMARK" for name in _OWN},
    expected=Benchmark,
)


class _Benchmarks(TyperGroup):
    """Looks benchmarks up when they are asked for, so that no other command waits for a search of packages."""

    def list_commands(self, ctx: object) -> list[str]:  # noqa: ARG002 - typer's signature
        """Names for the help page."""
        return list(BENCHMARKS.names())

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """The command of this name; None where others are installed. ConfigError where the laboratory is not."""
        names = BENCHMARKS.names()
        if cmd_name in names:
            return _command(cmd_name)
        if len(names) > len(_OWN) or cmd_name.startswith("-") or ctx.resilient_parsing:
            return None
        raise ConfigError(
            f"there is no benchmark {cmd_name!r} here; the laboratory has more of them",
            remedy="Install it, in a clone: pip install -c constraints.txt ./lab",
        )


def _command(name: str) -> TyperCommand:
    benchmark = BENCHMARKS.get(name)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    alone.command(name, epilog=benchmark.epilog)(benchmark.command)
    return cast(TyperCommand, typer.main.get_command(alone))


bench_app = typer.Typer(cls=_Benchmarks, no_args_is_help=True, help="Benchmarks that anyone can rerun.")
