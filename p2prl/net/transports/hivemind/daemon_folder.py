"""Private folder of one daemon: its sockets and key file, under a lock; folders of killed processes are removed."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import IO

_FOLDERS = Path("/tmp")  # noqa: S108 - private folders; not TMPDIR, macOS's makes socket paths pass 104 bytes
_PREFIX = "p2prl-"

_chosen: list[Path] = []


def make_in(folder: Path) -> None:
    """Make this process's folders in another one, which is private already: a confined process cannot use /tmp."""
    _chosen[:] = [folder]


class DaemonFolder:
    """A folder that only this user can enter, until `remove`."""

    def __init__(self) -> None:
        """Create the folder, and remove those of dead processes: SIGKILL leaves one behind.

        A lock file gets its name only once the lock is held. A folder without one is just being created, and is left
        alone.
        """
        parent = _chosen[0] if _chosen else _FOLDERS
        for old in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError), (old / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
        # mkdtemp makes the folder 0700, which is what keeps other users of the machine off the sockets and the key.
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock: IO[str] = (self.path / "lock.new").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.path / "lock.new").rename(self.path / "lock")

    def remove(self) -> None:
        """Delete the folder and release its lock. May be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()
