"""`p2prl update`: asks nobody unless told to; real git and pip answer from folders of this machine."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

import p2prl
from p2prl.cli.commands import update as update_check
from p2prl.cli.commands.update import has_moved_on, newest_release
from p2prl.errors import ConfigError, MachineError, TransportError
from p2prl.installation import Installation
from tests.command_doc import json_keys
from tests.unit.cli.invocation import invoke, json_of

RELEASE = Installation(None, "pip install --upgrade p2prl")


def installed(monkeypatch: pytest.MonkeyPatch, installation: Installation, newest: Any = None) -> None:
    """Pretend that this copy was installed so, and that the index has this release."""

    def ask(_: str) -> Any:
        if isinstance(newest, Exception):
            raise newest
        return newest

    monkeypatch.setattr(update_check, "this_installation", lambda: installation)
    monkeypatch.setattr(update_check, "newest_release", ask)


def test_nobody_is_asked_without_check(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, RELEASE, newest=AssertionError("asked"))
    shown = invoke("update")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[0].startswith(f"p2prl {p2prl.__version__}, wire version ")
    assert "To update: pip install --upgrade p2prl" in shown.stdout
    assert json_of("update")["newer"] is None


@pytest.mark.parametrize(
    ("newest", "newer", "words"),
    [
        ("0.0.9", False, "nothing newer"),
        (p2prl.__version__, False, "nothing newer"),
        ("0.10.0", True, "0.10.0 is out"),
        (None, None, "no release for this machine"),
    ],
)
def test_the_answer_of_the_index(
    monkeypatch: pytest.MonkeyPatch, newest: str | None, newer: bool | None, words: str
) -> None:
    installed(monkeypatch, RELEASE, newest)
    shown = invoke("update", "--check")
    assert words in shown.stdout
    assert ("To update: " in shown.stdout) == (newer is not False)
    document = json_of("update", "--check")
    assert (document["newest"], document["newer"], document["source"]) == (newest, newer, "index")
    assert set(document) == json_keys("p2prl update")


def test_offline_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, RELEASE, TransportError("the package index does not answer", remedy="Try again later."))
    with pytest.raises(TransportError) as caught:
        raise invoke("update", "--check").exception
    assert caught.value.exit_code == 75


def git(folder: Path, *arguments: str) -> None:
    author = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *author, *arguments], check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of a repository `remote` beside it with one commit."""
    remote = tmp_path / "remote"
    remote.mkdir()
    git(remote, "init", "--initial-branch", "main")
    git(remote, "commit", "--allow-empty", "-m", "first")
    git(tmp_path, "clone", "remote", "clone")
    return tmp_path / "clone"


def test_a_clone_is_compared_with_the_branch_it_follows(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Installation(clone, "cd clone && git pull"))
    assert json_of("update", "--check")["newer"] is False
    git(clone, "commit", "--allow-empty", "-m", "the owner's own")
    assert not has_moved_on(clone)
    git(clone.parent / "remote", "commit", "--allow-empty", "-m", "second")
    assert has_moved_on(clone)
    assert "the branch it came from has moved on" in invoke("update", "--check").stdout


def test_a_clone_without_its_remote(clone: Path) -> None:
    (clone.parent / "remote").rename(clone.parent / "gone")
    with pytest.raises(TransportError, match="does not answer"):
        has_moved_on(clone)
    git(clone, "switch", "--detach")
    with pytest.raises(ConfigError, match="follows no branch"):
        has_moved_on(clone)


def test_a_repository_is_asked_for_the_revision_that_was_wanted(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = clone.parent / "remote"
    git(remote, "tag", "--annotate", "-m", "the first", "v1")
    commit = (remote / ".git/refs/heads/main").read_text().strip()

    def newer(revision: str) -> Any:
        installed(monkeypatch, Installation(None, "again", repository=(str(remote), revision, commit)))
        return json_of("update", "--check")["newer"]

    assert [newer(revision) for revision in ("HEAD", "main", "v1", commit, commit[:8])] == [False] * 5
    git(remote, "commit", "--allow-empty", "-m", "second")
    assert [newer(revision) for revision in ("HEAD", "main", "v1", commit)] == [True, True, False, False]
    assert json_of("update", "--check")["source"] == "repository"
    installed(monkeypatch, Installation(None, "again", repository=(str(clone / "gone"), "HEAD", commit)))
    with pytest.raises(TransportError, match="does not answer"):
        raise invoke("update", "--check").exception


def wheel(folder: Path, name: str, version: str) -> None:
    """A release, as an index serves it."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{about}/RECORD", "")


def test_pip_names_the_newest_release_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    releases = tmp_path / "simple" / "p2prl-of-a-test"
    for version in ("0.9.0", "0.10.0", "0.11.0rc1"):
        wheel(releases, "p2prl_of_a_test", version)
    (releases / "index.html").write_text("".join(f'<a href="{each.name}"></a>' for each in releases.glob("*.whl")))
    assert newest_release("p2prl-of-a-test") == "0.10.0"


EMPTY = "ERROR: Could not find a version that satisfies the requirement x (from versions: none)\nERROR: No matching \
distribution found for x\n"
REFUSED = "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection \
broken by 'NewConnectionError(': Failed to establish a new connection: [Errno 111] Connection refused')': /simple/x/\n"


def pip_that_says(folder: Path, text: str) -> str:
    """A Python whose pip fails with this on standard error."""
    (folder / "said").write_text(text)
    program = folder / "python"
    program.write_text(f"#!/bin/sh\ncat {folder}/said >&2\nexit 1\n")
    program.chmod(0o700)
    return str(program)


def test_an_index_that_does_not_answer_is_not_an_empty_one(tmp_path: Path) -> None:
    """Pip ends both with the same words."""
    assert newest_release("x", python=pip_that_says(tmp_path, EMPTY)) is None
    with pytest.raises(TransportError, match="index does not answer"):
        newest_release("x", python=pip_that_says(tmp_path, REFUSED + EMPTY))


def test_an_environment_without_pip_and_other_faults(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="no pip") as caught:
        newest_release("x", python=pip_that_says(tmp_path, "/usr/bin/python: No module named pip\n"))
    assert "uv tool upgrade x" in caught.value.remedy
    with pytest.raises(TransportError, match="could not ask the package index: no such option: --report"):
        newest_release("x", python=pip_that_says(tmp_path, "usage\nno such option: --report\n"))
