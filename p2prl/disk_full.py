"""Full and unwritable disks: turn a failed write into one sentence with a remedy."""

from __future__ import annotations

import errno
import sqlite3

from p2prl.errors import MachineError

_NO_PERMISSION = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
)
_NO_PERMISSION_SQLITE = frozenset({sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN})


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
