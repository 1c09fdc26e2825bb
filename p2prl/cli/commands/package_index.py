"""Newest release on the package index that pip is set to use. The one place that runs pip."""

from __future__ import annotations

import json
import subprocess
import sys

from p2prl.errors import MachineError, TransportError

_PATIENCE_S = 60.0
"""Longest wait for pip: two attempts of ten seconds on each of a few indexes."""

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
