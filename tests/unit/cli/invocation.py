"""Call the command line inside the test process, and list its commands."""

from __future__ import annotations

import functools
import json
from typing import Any

import click
import typer
from click.testing import CliRunner

from p2prl.cli.app import app
from tests.json_shapes import breaches


@functools.cache
def _program() -> Any:
    return typer.main.get_command(app)


def _run(arguments: list[str], **options: Any) -> Any:
    """Run the program, built once for all tests: typer's runner builds it again each time."""
    return CliRunner().invoke(_program(), arguments, **options)


@functools.cache
def commands() -> dict[str, click.Command]:
    """Every command by its full name."""
    found: dict[str, click.Command] = {}

    def walk(command: Any, name: str) -> None:
        if not hasattr(command, "list_commands"):
            found[name] = command
            return
        if command.invoke_without_command and name != "p2prl":
            found[name] = command  # a group that does something by itself
        context = click.Context(command)
        for child in command.list_commands(context):
            walk(command.resolve_command(context, [child])[1], f"{name} {child}")

    walk(_program(), "p2prl")
    return found


def invoke(*arguments: object, stdin: str | None = None) -> Any:
    """The result of a command, with the `exception` it raised. A JSON object that it printed has its promised shape."""
    texts = [str(a) for a in arguments]
    result = _run(texts, input=stdin)
    if "--json" in texts and result.stdout.startswith("{"):
        *_, line = result.stdout.splitlines()
        assert breaches(json.loads(line), _name_of(texts)) == []
    return result


def _name_of(arguments: list[str]) -> str:
    """The full name of the command that these arguments call."""
    return next(name for end in (2, 1) if (name := " ".join(["p2prl", *arguments[:end]])) in commands())


@functools.cache
def help_text(name: str, *, columns: int = 120) -> str:
    """The help page of a command, given by its full name."""
    result = _run([*name.split()[1:], "--help"], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0
    return str(result.stdout)


def json_of(*arguments: object) -> dict[str, Any]:
    """The one JSON object on standard output."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    document: dict[str, Any] = json.loads(line)
    return document
