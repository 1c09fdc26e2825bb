"""Help pages: fast, complete, with defaults, choices and examples, and equal to docs/cli.md."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys

import click
import pytest

from p2prl.cli.commands.bench import BENCHMARKS
from p2prl.cli.examples import examples
from p2prl.config.presets import PRESETS
from p2prl.controls.limits import SPECS
from p2prl.controls.owner_values import OFF
from p2prl.errors import ConfigError
from p2prl.protocol.manifests import DTYPE_BYTES
from p2prl.tasks.task_registry import TASKS
from tests.command_doc import DOC, section
from tests.unit.cli.invocation import commands, help_text, invoke
from tests.unit.cli.light_imports import outcomes
from tests.unit.cli.test_refusals import SOME_LINK

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
COMMANDS = sorted(commands())


def test_help_is_fast_and_needs_no_torch() -> None:
    probe = (
        "import sys; sys.argv = ['p2prl', '--help']\n"
        "from p2prl.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'hivemind', 'matplotlib', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    best = min(processor_seconds([sys.executable, "-c", probe]) for _ in range(3))
    assert best < 1.0, f"{best:.2f} s"


def processor_seconds(arguments: list[str]) -> float:
    """CPU time of a command: unlike wall time, independent of the machine's other load."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(arguments, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stderr
    assert all(panel in result.stdout for panel in ("Volunteer", "Operate", "Inspect"))
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


LIGHT = (
    "status",
    "key",
    "key_owner",
    "board",
    "ledger",
    "join_worker",
    "validate_worker",
    "seed_worker",
)


MODULES = [*LIGHT, "init", "learn", "eval", "export", "demo", "sim", "plan"]


@pytest.fixture(scope="module")
def import_failures() -> dict[str, str]:
    """What went wrong with the import of each module."""
    programs = [
        f"import sys, p2prl.cli.commands.{module}; assert 'torch' not in sys.modules, 'it imports torch'"
        for module in MODULES
    ]
    return dict(zip(MODULES, outcomes(programs), strict=True))


@pytest.mark.parametrize("module", MODULES)
def test_commands_import_without_torch(module: str, import_failures: dict[str, str]) -> None:
    assert import_failures[module] == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained_and_documented(name: str) -> None:
    shown, text = help_text(name), section(name)
    context = click.Context(commands()[name])
    for parameter in commands()[name].get_params(context):
        for option in parameter.opts:
            if option.startswith("--") and option != "--help":
                assert option in shown
                assert f"`{option}`" in text, f"{name} {option} is not in docs/cli.md"
                assert getattr(parameter, "help", None), f"{name} {option} has no help"


@pytest.mark.parametrize("name", COMMANDS)
def test_options_without_a_value_name_their_default(name: str) -> None:
    """Typer shows every other default by itself."""
    for parameter in commands()[name].params:
        option = parameter.opts[0]
        if option.startswith("--") and (parameter.default is None or parameter.default == ""):
            assert "Default:" in str(parameter.help), f"{name} {option}"


def test_no_default_is_cut_off_on_a_narrow_terminal() -> None:
    for name, command in commands().items():
        shown = re.sub(r"[\s│]", "", help_text(name, columns=80))
        for parameter in command.params:
            if isinstance(parameter.default, str) and parameter.default:
                assert parameter.default.replace(" ", "") in shown, (name, parameter.name)


@pytest.mark.parametrize("name", ["p2prl", *COMMANDS])
def test_every_command_has_examples(name: str) -> None:
    shown = help_text(name, columns=200)
    group, _, last = name.rpartition(" ")
    for line in BENCHMARKS.get(last).examples if group == "p2prl bench" else examples(name):
        assert line in shown
        assert f"$ {line}\n" in section(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_arguments_are_named_in_capitals(name: str) -> None:
    arguments = [each for each in commands()[name].params if isinstance(each, click.Argument)]
    assert all(each.metavar and each.metavar.isupper() for each in arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("learn", "/nowhere", "--track"),
        ("join", SOME_LINK, "--transport"),
        ("service print", SOME_LINK, "--manager"),
        ("service print", SOME_LINK, "--run"),
        ("init", "x", "--preset"),
        ("init", "x", "--dtype"),
        ("export", "/nowhere", "--dtype"),
        ("eval", "/nowhere", "--split"),
        ("bench spread", "--links"),
        ("bench spread", "--schemes"),
        ("bench machine", "--device"),
        ("bench step", "--model"),
        ("bench replay", "--models"),
        ("bench trust", "--part"),
        ("bench trust", "--floods"),
    ],
)
def test_help_names_every_choice_that_a_refusal_names(arguments: tuple[str, ...]) -> None:
    command, *rest = arguments
    refused = invoke(*command.split(), *rest, "no-such").exception
    assert isinstance(refused, ConfigError)
    named = max(re.findall(r"[\w-]+(?:, [\w-]+)+", f"{refused}; {refused.remedy}"), key=len)
    shown = help_text(f"p2prl {command}", columns=200)
    for choice in named.split(", "):
        assert choice in shown, choice


def test_init_lists_presets_tasks_and_types() -> None:
    shown = help_text("p2prl init")
    for choice in (*PRESETS, *TASKS.names(), *DTYPE_BYTES):
        assert choice in shown, choice


def test_help_names_every_limit_with_its_example_and_its_default() -> None:
    shown = help_text("p2prl limits", columns=200)
    for spec in SPECS:
        (line,) = [each for each in shown.splitlines() if each.strip().startswith(f"{spec.name}=")]
        assert spec.example in line
        assert spec.meaning in line
        assert (spec.default == OFF) != (f"Default: {spec.default}." in line)
    assert "Default: off." in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_no_text_between_colons_became_a_picture(name: str) -> None:
    """rich draws `:a:` as an emoji."""
    assert not re.findall(r"[\U0001f000-\U0001ffff]", help_text(name))


def test_the_documentation_has_no_other_command_or_option() -> None:
    assert set(re.findall(r"^## (p2prl.*)$", DOC, re.MULTILINE)) == {"p2prl", *commands()}
    for name, command in commands().items():
        options = {option for parameter in command.params for option in parameter.opts}
        documented = set(re.findall(r"^\| (`--.*?) \|", section(name), re.MULTILINE))
        assert set(re.findall(r"`(--[a-z-]+)`", " ".join(documented))) <= options, name
