"""Crash files: the traceback of an unexpected error, redacted, kept in the folder the command works in."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path

from p2prl import __version__
from p2prl.redaction import redacted

_folder: list[Path] = []


def keep_in(folder: Path) -> None:
    """Write this process's crash files to `folder` from now on: the run folder or the worker's folder."""
    _folder[:] = [folder]


def write(error: BaseException) -> Path:
    """Write the traceback and the program's version; return the file, which may be pasted into a report.

    No arguments or settings: they may be private. What a message or a path tells of this machine is taken out.
    """
    lines = [
        f"p2prl {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}\n",
        f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n\n",
        *map(redacted, traceback.format_exception(error)),
    ]
    for folder in (*_folder, None):
        try:
            return _write_new(folder or Path(tempfile.mkdtemp(prefix="p2prl-crash-")), "".join(lines))
        except OSError:
            continue
    sys.stderr.writelines(lines)  # no folder is writable: print the traceback rather than lose it
    return Path(sys.stderr.name)


def _write_new(folder: Path, text: str) -> Path:
    """Write a file that nobody else can read, under a name that is not taken: never through a link laid out for it."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = folder / f"crash-{stamp}.log"
    if os.path.lexists(path):
        path = folder / f"crash-{stamp}-{os.getpid()}.log"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    return path
