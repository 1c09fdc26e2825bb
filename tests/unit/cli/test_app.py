"""The table of commands: its summaries are the commands' own, and a command that confines itself starts no thread."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from click.testing import CliRunner

from p2prl.cli.app import COMMANDS, load
from p2prl.cli.commands.bench import BENCHMARKS
from p2prl.cli.options import AsJson, takes_records
from tests.unit.cli.invocation import commands, invoke
from tests.unit.cli.light_imports import outcomes


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_summary_is_the_first_paragraph_of_the_help_page(name: str) -> None:
    assert COMMANDS[name].summary == inspect.cleandoc(load(name).help).split("\n\n")[0].replace("\n", " ")
    assert load(name).rich_help_panel == COMMANDS[name].panel


def test_a_wrong_name_is_refused_with_the_nearest_one() -> None:
    refused = invoke("jion")
    assert refused.exit_code == 2
    assert "'join'" in refused.output


def test_workers_start_no_thread_before_they_are_confined() -> None:
    """Landlock binds the thread that asks: one that numpy has started before would stay free."""
    probe = (
        "import os, p2prl.cli.commands.{0}\n"
        "tasks = '/proc/self/task'\n"
        "assert not os.path.isdir(tasks) or len(os.listdir(tasks)) == 1, os.listdir(tasks)\n"
    )
    assert outcomes([probe.format(name) for name in ("join", "seed", "validate")]) == [""] * 3


LISTED = Path(__file__).with_name("stable_commands.txt")


def lines_of_the_program() -> set[str]:
    """A line for each command, argument and option of p2prl itself; installed benchmarks are their packages'."""
    lines = set()
    for name, command in commands().items():
        if name.startswith("p2prl bench ") and name.split()[2] not in ("machine", "engine", "step", "ranks", "publish"):
            assert name.split()[2] in BENCHMARKS.names()
            continue
        lines.add(name)
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                lines.add(f"{name} {parameter.metavar}")
            else:
                lines |= {f"{name} {option}" for option in (*parameter.opts, *parameter.secondary_opts)}
    return lines


def test_no_stable_command_or_option_is_gone_and_each_new_one_is_listed() -> None:
    """A line leaves the file only with a new major version (docs/cli.md); a new command or option adds its own."""
    stable = set(LISTED.read_text().splitlines())
    assert stable - lines_of_the_program() == set(), "taken away"
    assert lines_of_the_program() - stable == set(), "not listed yet"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of a small command."""

    size: Annotated[int, typer.Option("--size", min=1, help="How large.")] = 3
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose.")]


def test_a_record_gives_way_to_its_fields_and_comes_back_whole() -> None:
    seen: list[tuple[Settings, bool]] = []

    def command(settings: Settings, as_json: AsJson = False) -> None:
        seen.append((settings, as_json))

    app = typer.Typer(add_completion=False)
    app.command()(takes_records(command))
    program: Any = typer.main.get_command(app)
    for arguments in (["ann"], ["ann", "--size", "5", "--json"]):
        assert CliRunner().invoke(program, arguments).exit_code == 0
    assert seen == [(Settings(name="ann", size=3), False), (Settings(name="ann", size=5), True)]
    assert CliRunner().invoke(program, ["ann", "--size", "0"]).exit_code == 2, "a field keeps its bounds"
    assert CliRunner().invoke(program, []).exit_code == 2, "a field without a default is required"
    shown = CliRunner().invoke(program, ["--help"]).output
    assert "--size" in shown
    assert "How large." in shown
