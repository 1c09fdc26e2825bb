"""`p2prl update`: the command that updates this program, and a check for something newer.

The one place that runs pip and git.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from packaging.version import InvalidVersion, Version

from p2prl import __version__
from p2prl.cli.options import AsJson
from p2prl.cli.views.console import emit, say
from p2prl.errors import ConfigError, MachineError, TransportError
from p2prl.installation import DISTRIBUTION, Installation, this_installation
from p2prl.protocol import wire_version

Check = Annotated[
    bool,
    typer.Option("--check", help="Ask where it was installed from, the clone's remote or pip's package index. Once."),
]


def update(check: Check = False, as_json: AsJson = False) -> None:
    """Show the command that updates this program; with --check, whether there is something newer.

    Nothing is installed, and without --check nobody is asked. No other command looks for updates.
    """
    installed = this_installation()
    newest: str | None = None
    newer: bool | None = None
    if check:
        newest, newer = _ask(installed)
    if as_json:
        emit(
            {
                "version": __version__,
                "wire_version": wire_version.WIRE_VERSION,
                "source": _source(installed),
                "checked": check,
                "newest": newest,
                "newer": newer,
                "command": installed.update_command,
            }
        )
        return
    verdict = f": {_verdict(newest, newer)}" if check else ""
    sys.stdout.write(f"p2prl {__version__}, wire version {wire_version.WIRE_VERSION}{verdict}\n")
    if newer is not False:
        sys.stdout.write(f"To update: {installed.update_command}\n")
    if not check:
        sys.stdout.write("p2prl update --check asks whether there is something newer.\n")


def _source(installed: Installation) -> str:
    if installed.clone is not None:
        return "clone"
    return "index" if installed.repository is None else "repository"


def _ask(installed: Installation) -> tuple[str | None, bool | None]:
    """The newest release, where there are releases, and whether it is newer; None where nothing is known of one."""
    if installed.clone is not None:
        say("Asking the remote of your clone …")
        return None, has_moved_on(installed.clone)
    if installed.repository is not None:
        say("Asking the repository that it came from …")
        return None, has_newer_commit(*installed.repository)
    say("Asking the package index that pip uses …")
    newest = newest_release(DISTRIBUTION)
    return newest, None if newest is None else _is_newer(newest)


def _is_newer(newest: str) -> bool:
    try:
        return Version(newest) > Version(__version__)
    except InvalidVersion:
        return False


def _verdict(newest: str | None, newer: bool | None) -> str:
    if newer is None:
        return "the package index has no release for this machine"
    if newer:
        return f"{newest} is out" if newest else "the branch it came from has moved on"
    return "nothing newer is out"


_PATIENCE_S = 60.0
"""Longest wait for pip, two attempts of ten seconds on each of a few indexes, and for git."""

_ASK = (
    *("install", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--quiet", "--report", "-"),
    *("--no-input", "--disable-pip-version-check", "--retries", "1", "--timeout", "10"),
)
"""A dry run resolves as an update would, with the user's index, proxy and certificates, and runs no code of a release:
wheels alone. Its report is pip's documented format; `pip index versions` has none in older versions."""


def newest_release(distribution: str, *, python: str = sys.executable) -> str | None:
    """Version of the newest release that this Python can install; None where the index has none.

    `TransportError` when the index does not answer, `MachineError` where this environment has no pip.
    """
    try:
        done = subprocess.run(
            [python, "-m", "pip", *_ASK, distribution],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise _silent() from error
    if "No module named pip" in done.stderr:
        raise MachineError(
            "this environment has no pip to ask the package index with",
            remedy=f"uv tool upgrade {distribution}, or python -m ensurepip.",
        )
    if "connection broken" in done.stderr:  # pip then goes on as if the index were empty
        raise _silent()
    if done.returncode and "No matching distribution" in done.stderr:
        return None
    try:
        (found,) = json.loads(done.stdout)["install"]
        return str(found["metadata"]["version"])
    except (ValueError, KeyError, TypeError) as error:
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise TransportError(f"pip could not ask the package index: {said}", remedy="Try again later.") from error


def _silent() -> TransportError:
    return TransportError(
        "the package index does not answer", remedy="Check your connection and pip's settings, and try again later."
    )


def has_moved_on(clone: Path) -> bool:
    """Whether the remote branch holds commits that this clone has not. Nothing is fetched.

    `ConfigError` when the clone follows no branch, `TransportError` when the remote does not answer, `MachineError`
    without git.
    """
    followed = _git(clone, "for-each-ref", "--format=%(upstream:remotename) %(upstream:remoteref)", _branch(clone))
    remote, _, reference = (followed or "").strip().partition(" ")
    if not reference:
        raise ConfigError(
            "this clone follows no branch of a remote, so there is nothing to compare it with",
            remedy="git branch --set-upstream-to=REMOTE/BRANCH names one.",
        )
    newest = _listed_commits(clone, remote, reference)[0]
    return _git(clone, "merge-base", "--is-ancestor", newest, "HEAD") is None


def has_newer_commit(url: str, revision: str, commit: str) -> bool:
    """Whether the branch or tag that was asked for names another commit by now. Errors as of `has_moved_on`."""
    if commit.startswith(revision):
        return False
    return commit not in _listed_commits(Path("/"), url, revision, f"{revision}^{{}}")


def _listed_commits(folder: Path, remote: str, *references: str) -> list[str]:
    """What a remote's references name, an annotated tag first itself, then its commit."""
    listed = _git(folder, "ls-remote", "--quiet", "--", remote, *references)
    if not listed:
        raise TransportError(
            f"the remote {remote} does not answer", remedy="Check your connection, and try again later."
        )
    return [line.split()[0] for line in listed.splitlines()]


def _branch(clone: Path) -> str:
    return (_git(clone, "symbolic-ref", "--quiet", "HEAD") or "").strip() or "refs/heads/none"


def _git(clone: Path, *arguments: str) -> str | None:
    """What git prints, or None when it fails."""
    program = shutil.which("git")
    if program is None:
        raise MachineError("git is not installed", remedy="Install it with your system's packages.")
    environment = {"GIT_SSH_COMMAND": "ssh -o BatchMode=yes", **os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            [program, "-C", str(clone), *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=_PATIENCE_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
