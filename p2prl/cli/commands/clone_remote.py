"""Remote of a clone: has the branch that it follows moved on? The one place that runs git."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from p2prl.errors import ConfigError, MachineError, TransportError

_PATIENCE_S = 60.0


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
    listed = _git(clone, "ls-remote", "--quiet", remote, reference)
    if not listed:
        raise TransportError(
            "the remote of this clone does not answer", remedy="Check your connection, and try again later."
        )
    newest = listed.split()[0]
    return _git(clone, "merge-base", "--is-ancestor", newest, "HEAD") is None


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
