"""Origin of a copy of the program, by its installer's record, and the command that updates it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from p2prl.installation import Installation, installation_of, this_installation


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


def test_what_building_left_in_a_clone_hides_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that starts in its clone looks there first."""
    clone, packages = tmp_path / "clone", tmp_path / "packages"
    (clone / ".git").mkdir(parents=True)
    for folder in (clone / "p2prl.egg-info", packages / "p2prl-1.0.dist-info"):
        folder.mkdir(parents=True)
        (folder / ("METADATA" if folder.suffix == ".dist-info" else "PKG-INFO")).write_text("Name: p2prl\n")
    (packages / "p2prl-1.0.dist-info" / "direct_url.json").write_text(
        record(clone.as_uri(), dir_info={"editable": True})
    )
    monkeypatch.setattr(sys, "path", [str(clone), str(packages)])
    this_installation.cache_clear()
    try:
        assert this_installation().clone == clone
    finally:
        this_installation.cache_clear()


PLACES = {
    "index": None,
    "repository": record("https://example.org/p2prl.git", vcs_info={"vcs": "git", "commit_id": "a"}),
    "wheel": record("file:///tmp/p2prl-1.0-py3-none-any.whl", archive_info={}),
}
FETCH = "install --upgrade --force-reinstall --no-deps 'p2prl @ git+https://example.org/p2prl.git'"


@pytest.mark.parametrize(
    ("mark", "place", "update", "extra"),
    [
        ("", "index", "pip install --upgrade p2prl", "pip install 'p2prl[math]'"),
        ("", "repository", f"pip {FETCH}", "pip install 'p2prl[math]'"),
        ("", "wheel", "pip install --upgrade WHEEL", "pip install 'p2prl[math]'"),
        ("pipx_metadata.json", "index", "pipx upgrade p2prl", "pipx runpip p2prl install 'p2prl[math]'"),
        ("pipx_metadata.json", "repository", f"pipx runpip p2prl {FETCH}", "pipx runpip p2prl install 'p2prl[math]'"),
        (
            "uv-receipt.toml",
            "index",
            "uv tool upgrade p2prl",
            "uv tool install --python 3.12 --torch-backend auto 'p2prl[math]'",
        ),
        (
            "uv-receipt.toml",
            "repository",
            "uv tool upgrade p2prl",
            "uv tool install --python 3.12 --torch-backend auto 'p2prl[math] @ git+https://example.org/p2prl.git'",
        ),
        (
            "uv-receipt.toml",
            "wheel",
            "uv tool install --python 3.12 --torch-backend auto --upgrade WHEEL",
            "uv tool install --python 3.12 --torch-backend auto 'p2prl[math] @ file:///tmp/p2prl-1.0-py3-none-any.whl'",
        ),
    ],
)
def test_each_installer_has_its_own_words(tmp_path: Path, mark: str, place: str, update: str, extra: str) -> None:
    if mark:
        (tmp_path / mark).touch()
    found = installation_of(PLACES[place], tmp_path)
    assert found.clone is None
    assert found.update_command.partition("   #")[0] == update
    assert found.extra_command.replace("{extra}", "math") == extra
    program = {"pipx_metadata.json": "pipx ", "uv-receipt.toml": "uv tool "}.get(mark, "pip ")
    assert found.again_command.startswith(f"{program}uninstall p2prl")
    assert (found.repository is not None) == (place == "repository")


def test_a_repository_keeps_what_was_asked_for(tmp_path: Path) -> None:
    about = {"vcs": "git", "commit_id": "abc", "requested_revision": "v1.0"}
    assert installation_of(record("https://a.example/p", vcs_info=about), tmp_path).repository == (
        "https://a.example/p",
        "v1.0",
        "abc",
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": 3}', '{"url": "file:///nowhere/p2prl", "dir_info": {}}'])
def test_a_record_that_says_nothing_gives_the_general_command(tmp_path: Path, text: str) -> None:
    assert installation_of(text, tmp_path) == Installation(
        None, "in your clone, git pull && pip install -c constraints.txt ."
    )
