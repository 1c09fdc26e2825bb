"""`p2prl init --config`: values of a file are those of the options, and what is typed counts instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from p2prl.cli.commands.init_options import InitOptions
from p2prl.cli.options import takes_records
from p2prl.errors import ConfigError


def options_of(path: Path, text: str, *arguments: str) -> InitOptions:
    """The options that the command gets."""
    (path / "run-options.toml").write_text(text)
    got: list[InitOptions] = []
    app = typer.Typer()

    @app.command()
    @takes_records
    def init(options: InitOptions) -> None:
        got.append(options)

    done = CliRunner().invoke(app, ["my-run", "--config", str(path / "run-options.toml"), *arguments])
    if done.exception is not None:
        raise done.exception
    return got[0]


def test_values_of_the_file_are_those_of_the_options(tmp_path: Path) -> None:
    text = 'group-size = 4\nlora = 2\ntask = ["chain4@2", "walk12"]\nforce = true\ntemperature = 0.5\nlicense = "MIT"\n'
    options = options_of(tmp_path, text, "--lora", "8", "--seed", "3")
    assert (options.name, options.group_size, options.lora_rank, options.seed) == ("my-run", 4, 8, 3)
    assert (options.tasks, options.force, options.temperature) == (["chain4@2", "walk12"], True, 0.5)
    assert (options.license_name, options.preset) == ("MIT", "chain4")


def test_what_is_typed_counts_instead_of_a_list(tmp_path: Path) -> None:
    options = options_of(tmp_path, 'scorer = "number"\ndata = ["a.jsonl"]\n', "--data", "b.jsonl")
    assert (options.scorers, options.data) == (["number"], ["b.jsonl"])


@pytest.mark.parametrize(
    ("text", "said", "remedy"),
    [
        ("group-sise = 4", "unknown key 'group-sise'", "group-size"),
        ("name = 'other'", "unknown key 'name'", ""),
        ("config = 'other.toml'", "unknown key 'config'", ""),
        ("lora = [1, 2]", "'lora' is no value", "--help"),
        ("[lora]\nrank = 2", "'lora' is no value", "--help"),
        ("data = [[1]]", "'data' is no value", "--help"),
        ("lora =", "is not TOML", ""),
    ],
)
def test_keys_and_values_that_are_none_are_refused(tmp_path: Path, text: str, said: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        options_of(tmp_path, text)
    assert remedy in caught.value.remedy
