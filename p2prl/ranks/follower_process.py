"""The process of every rank but rank 0: `python -m p2prl.ranks.follower_process`. It ends with its learner.

The pipe of commands is watched from the first moment on: imports take seconds, and ranks wait for each other for
minutes.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import threading
from pathlib import Path

from p2prl.confinement.pipe_io import await_hangup


def main(arguments: list[str]) -> int:
    """Follow rank 0's commands; `arguments` as for `follower.main`."""
    folder = RanksFolder(Path(json.loads(arguments[1])["folder"]))
    end = threading.Thread(target=_end_with, args=(sys.stdin.fileno(), folder), daemon=True)
    end.start()
    from p2prl.ranks.follower import main as follow  # here: it imports torch

    status = follow(arguments, folder.opening)
    if status == 0:
        end.join()  # the learner has ended: this rank ends there
    return status


class RanksFolder:
    """The folder that the ranks of a learner share, removed by the last one if the learner was killed.

    A meeting that is opened in a folder which is gone blocks every thread of its process for minutes, so nobody removes
    the folder while a rank may open one.
    """

    def __init__(self, folder: Path) -> None:
        """Hold the folder. `FileNotFoundError` when it was removed already."""
        self.opening = threading.Lock()
        """Held while this process opens the meeting."""
        self._folder = folder
        self._hold = os.open(folder, os.O_RDONLY)
        fcntl.flock(self._hold, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Remove the folder unless another rank holds it. This process opens no meeting there any more."""
        self.opening.acquire()
        fcntl.flock(self._hold, fcntl.LOCK_UN)
        try:
            fcntl.flock(self._hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(self._folder, ignore_errors=True)


def _end_with(pipe: int, folder: RanksFolder) -> None:
    """End this process once the other end of a pipe is closed, as it is when the learner is killed."""
    await_hangup(pipe)
    folder.leave()
    os._exit(0)  # what the main thread waits for will not come


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
