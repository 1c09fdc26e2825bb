"""Crash files: the traceback of an unexpected error, kept in the folder the command works in."""

from __future__ import annotations

import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path

from p2prl import __version__

_folder: list[Path] = []


def keep_in(folder: Path) -> None:
    """Write this process's crash files to `folder` from now on: the run folder or the worker's folder."""
    _folder[:] = [folder]


def write(error: BaseException) -> Path:
    """Write the traceback and the program's version; return the file. No arguments or settings: they may be private."""
    lines = [
        f"p2prl {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}\n",
        f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n\n",
        *traceback.format_exception(error),
    ]
    name = f"crash-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.log"
    for folder in (*_folder, Path(tempfile.gettempdir())):
        try:
            (folder / name).write_text("".join(lines))
        except OSError:
            continue
        return folder / name
    sys.stderr.writelines(lines)  # no folder is writable: print the traceback rather than lose it
    return Path(sys.stderr.name)
