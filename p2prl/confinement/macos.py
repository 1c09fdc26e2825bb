"""The sandbox profile of a role on macOS, in place of Linux's layers.

Never run: it was written from the description of the profile language, and no Mac was at hand. A profile that the
system refuses is reported as a missing layer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path


def role_profile(own: Path, readable: Iterable[Path], home: Path) -> str:
    """A profile: writes below `own` only, reads of `home` only below `own` and `readable`, no programs, no network."""
    kept = "\n".join(f"  (subpath {_quoted(path)})" for path in (own, *readable))
    return f"""(version 1)
(allow default)
(deny process-exec*)
(deny process-fork)
(deny network*)
(deny file-write*)
(allow file-write*
  (subpath {_quoted(own)})
  (literal "/dev/null")
  (literal "/dev/tty")
  (regex #"^/dev/dtracehelper"))
(deny file-read* (subpath {_quoted(home)}))
(allow file-read*
{kept})
"""


def apply_profile(profile: str) -> bool:
    """Restrict this process by a profile, for good. False where the system has no such call or refuses it."""
    try:
        library = ctypes.CDLL("/usr/lib/libSystem.dylib", use_errno=True)
        problem = ctypes.c_char_p()
        code: int = library.sandbox_init(profile.encode(), ctypes.c_uint64(0), ctypes.byref(problem))
    except (OSError, AttributeError):
        return False
    return code == 0


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
