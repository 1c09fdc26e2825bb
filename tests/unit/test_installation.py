"""Origin of a copy of the program, by its installer's record, and the command that updates it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2prl.installation import Installation, installation_of


def record(url: str, **more: object) -> str:
    return json.dumps({"url": url, **more})


@pytest.mark.parametrize(("editable", "target"), [(True, "-e ."), (False, ".")])
def test_a_clone_is_pulled_and_installed_as_it_was(tmp_path: Path, editable: bool, target: str) -> None:
    clone = tmp_path / "my clone"
    (clone / ".git").mkdir(parents=True)
    found = installation_of(record(clone.as_uri(), dir_info={"editable": editable}), tmp_path)
    assert found.clone == clone
    assert found.update_command == f"cd '{clone}' && git pull && pip install -c constraints.txt {target}"


def test_a_clone_in_the_home_is_named_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "src" / "p2prl" / ".git").mkdir(parents=True)
    found = installation_of(record((tmp_path / "src" / "p2prl").as_uri(), dir_info={}), tmp_path)
    assert found.update_command.startswith("cd ~/src/p2prl && git pull")


def test_a_release_comes_from_the_index(tmp_path: Path) -> None:
    assert installation_of(None, tmp_path) == Installation(None, "pip install --upgrade p2prl")
    (tmp_path / "uv-receipt.toml").touch()
    assert installation_of(None, tmp_path) == Installation(None, "uv tool upgrade p2prl")


def test_a_repository_is_named_again(tmp_path: Path) -> None:
    found = installation_of(
        record("https://example.org/p2prl.git", vcs_info={"vcs": "git", "commit_id": "a"}), tmp_path
    )
    assert found.clone is None
    assert found.update_command.endswith("'p2prl @ git+https://example.org/p2prl.git'")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": 3}', '{"url": "file:///nowhere/p2prl", "dir_info": {}}'])
def test_a_record_that_says_nothing_gives_the_general_command(tmp_path: Path, text: str) -> None:
    assert installation_of(text, tmp_path) == Installation(
        None, "in your clone, git pull && pip install -c constraints.txt ."
    )
