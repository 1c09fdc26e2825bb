"""Small files replaced in one step, and full or unwritable disks told in one sentence with a remedy."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from p2prl.errors import MachineError

_NO_PERMISSION = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
)
_NO_PERMISSION_SQLITE = frozenset({sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN})


def replace_file(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace a file in one step, so that nobody reads half of it; its folder is made. Raises `OSError`.

    A `private` file is readable by its owner alone, survives a power cut once this returns, and may be replaced by
    several programs at once.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}" if private else f"{path.name}.new")
    path.parent.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    try:
        flags, mode = os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666
        with os.fdopen(os.open(new, flags, mode), "wb") as file:
            file.write(data)
            file.flush()
            if private:
                os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def write_error(error: Exception, what: object, *, kept: str = "nothing is lost") -> MachineError:
    """Build the error for a file, folder or database (`what`) that cannot be written. `kept` tells how work continues.

    Anything but a lack of permission is treated as a full disk (ENOSPC, EDQUOT, SQLITE_FULL): libraries hide the error
    number in their exceptions, and a full disk is by far the most common cause.
    """
    reason = getattr(error, "strerror", None) or str(error)
    if _is_permission(error):
        remedy = f"Choose another folder or fix its permissions; {kept}."
    else:
        remedy = f"Free some space and restart; {kept}."
    return MachineError(f"cannot write {what}: {reason}", remedy=remedy)


def _is_permission(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in _NO_PERMISSION
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _NO_PERMISSION_SQLITE
