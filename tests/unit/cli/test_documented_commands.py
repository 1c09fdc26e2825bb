"""Every `p2prl` command line that a page prints is one that the program takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tests.unit.cli.invocation import commands, invoke
from tests.unit.house.source_tree import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
GROUPS = {name.rpartition(" ")[0] for name in commands()}
"""Names of groups of commands, `p2prl` among them."""


def command_lines(text: str) -> Iterator[list[str]]:
    """Words of each `p2prl` command in the console and shell blocks of a page."""
    for language, block in BLOCK.findall(text):
        joined = block.replace("\\\n", " ")
        for line in map(str.strip, joined.splitlines()):
            if language == "console":
                if not line.startswith("$ "):
                    continue
                line = line.removeprefix("$ ")
            if "p2prl " in line and language in ("", "console", "sh", "bash"):
                yield from programs(line)


def programs(line: str) -> Iterator[list[str]]:
    """The calls of p2prl in a line of a shell, without what stands before and after them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    call: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set("&|;()<>"):
            call.append(word)
            continue
        while call and re.match(r"[A-Z_][A-Z_0-9]*=", call[0]):
            call.pop(0)
        if call and call[0] == "p2prl":
            yield call
        call = []


def split(call: list[str]) -> tuple[str, list[str]]:
    """The full name of a command and its arguments."""
    names = (" ".join(call[:size]) for size in (3, 2, 1))
    name = next(name for name in names if name in commands() or name in GROUPS)
    return name, call[len(name.split()) :]


def refusal(call: list[str]) -> str:
    """Why the program does not take a call; empty when it does."""
    name, arguments = split(call)
    if name not in commands():
        return "" if arguments in ([], ["--help"], ["--version"]) else f"there is no {' '.join(call)}"
    try:
        commands()[name].make_context(name, arguments)
    except typer.Exit:
        return ""  # --help
    except Exception as error:  # noqa: BLE001 -- whatever it is, the line is not taken
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_program_takes_every_command_of_a_page(page: Path) -> None:
    refused = {" ".join(call): why for call in command_lines(page.read_text()) if (why := refusal(call))}
    assert refused == {}


def test_the_readme_and_the_reference_show_commands() -> None:
    """An extraction that finds nothing would pass everything."""
    assert len(list(command_lines((ROOT / "README.md").read_text()))) >= 6
    assert len(list(command_lines((ROOT / "docs" / "cli.md").read_text()))) >= 100


def test_a_wrong_line_is_refused() -> None:
    block = "```console\n$ P2PRL_HOME=x p2prl join LINK --no-such && p2prl seed LINK\noutput\n$ p2prl nothing # x\n```"
    assert list(command_lines(block)) == [
        ["p2prl", "join", "LINK", "--no-such"], ["p2prl", "seed", "LINK"], ["p2prl", "nothing"],
    ]  # fmt: skip
    assert "--no-such" in refusal(["p2prl", "join", "LINK", "--no-such"])
    assert refusal(["p2prl", "seed", "LINK"]) == ""
    assert refusal(["p2prl", "nothing"]) == "there is no p2prl nothing"


INLINE = re.compile(r"(?<!`)`(p2prl [^`\n]+)`(?!`)")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_command_named_in_a_sentence_exists_with_its_options(page: Path) -> None:
    unknown = []
    for text in INLINE.findall(page.read_text()):
        words = re.findall(r"\S+", text)
        name, arguments = split(words)
        known = {option for each in [name, *commands()] if each in commands() for option in options(each)}
        if name in commands():
            known = options(name)
        elif arguments and re.fullmatch(r"[a-z-]+", arguments[0]):
            unknown.append(text)
        unknown += [text for word in arguments if re.match(r"--[a-z]", word) and word.partition("=")[0] not in known]
    assert unknown == []


def options(name: str) -> set[str]:
    """Options of a command."""
    return {option for parameter in commands()[name].params for option in parameter.opts} | {"--help"}


QUICK = (
    "p2prl limits",
    "p2prl limits gpu.temp=75C gpu.power=200W idle=10m battery=never",
    "p2prl limits schedule='22:00-07:00, Sat-Sun' ram=default",
    "p2prl me",
    "p2prl me --json",
    "p2prl key owner",
    "p2prl key show",
    "p2prl team create 'Red Pandas'",
    "p2prl team show",
)
"""Documented lines that need no run and no network, in an order that a new home allows."""


def test_quick_commands_run_in_a_new_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PRL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    documented = [call for page in PAGES for call in command_lines(page.read_text())]
    for line in QUICK:
        call = shlex.split(line)
        assert call in documented, line
        result = invoke(*call[1:])
        assert result.exit_code == 0, (line, result.output, result.exception)
