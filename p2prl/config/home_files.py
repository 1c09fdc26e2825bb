"""Small text files of a home folder: read with a bound, replaced in one step, readable by their owner alone."""

from __future__ import annotations

import os
from pathlib import Path

from p2prl.disk_full import write_error
from p2prl.errors import IdentityError

_MOST_FILE_BYTES = 1024 * 1024
"""Of any of these files; the list of a thousand machines has about 200 kB."""


def damaged_file(path: Path, reason: object, *, remedy: str) -> IdentityError:
    """The error for a file that does not hold what p2prl wrote; `remedy` is what to run after deleting it."""
    return IdentityError(f"{path} is damaged: {reason}", remedy=f"Delete {path} and run {remedy} again.")


def read_file(path: Path, *, remedy: str) -> str | None:
    """The text of a file; None when it is not there. Raises `IdentityError` when it cannot be read as text."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_FILE_BYTES).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise damaged_file(path, error, remedy=remedy) from error


def replace_file(path: Path, text: str) -> None:
    """Replace a file in one step, readable by its owner alone. Raises `MachineError` when the disk refuses."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise write_error(error, path) from error
