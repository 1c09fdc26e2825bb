"""The user's home folder, where the environment and the system name one."""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def user_home() -> Path | None:
    """`$HOME`, else the home of the user database; None for a user without either.

    An empty or relative `$HOME` counts as none: `Path.home()` would take the root folder, or one below the current
    folder, and a service's user may have no entry in the database at all.
    """
    chosen = Path(os.environ.get("HOME", ""))
    if chosen.is_absolute():
        return chosen
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None
