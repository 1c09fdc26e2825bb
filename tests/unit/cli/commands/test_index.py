"""`p2prl index serve`: what it refuses before it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.cli.commands.index import owner_id
from p2prl.errors import ConfigError
from p2prl_lab.testing.sample_ledgers import identity
from tests.unit.cli.invocation import invoke


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--count", "nobody", "is no owner's peer id"),
        ("--count", "12D3KooWnone", "is no owner's peer id"),
        ("--count", "", "is no owner's peer id"),
        ("--mirror", "runs.example.org", "is not the address of an index"),
        ("--listen", "8100", "is not HOST:PORT"),
    ],
)
def test_an_option_that_names_nothing_is_refused_in_a_sentence(
    tmp_path: Path, option: str, value: str, words: str
) -> None:
    refused = invoke("index", "serve", option, value, "--home", tmp_path).exception
    assert isinstance(refused, ConfigError)
    assert words in str(refused)
    assert refused.remedy
    assert list(tmp_path.iterdir()) == []


def test_an_owner_is_a_peer_id() -> None:
    owner = identity("learner").peer_id
    assert owner_id(owner) == owner
