"""The process of every rank but rank 0: `python -m p2prl.ranks.follower_process`. It ends with its learner.

The pipe of commands is watched from the first moment on: imports take seconds, and ranks wait for each other for
minutes.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import threading


def main(arguments: list[str]) -> int:
    """Follow rank 0's commands; `arguments` as for `follower.main`."""
    folder = json.loads(arguments[1])["folder"]
    threading.Thread(target=_end_with, args=(sys.stdin.fileno(), folder), daemon=True).start()
    from p2prl.ranks.follower import main as follow  # here: it imports torch

    return follow(arguments)


def _end_with(pipe: int, folder: str) -> None:
    """End this process once the other end of a pipe is closed, as it is when the learner is killed."""
    poll = select.poll()
    poll.register(pipe, 0)  # a hangup is always reported
    poll.poll()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # what the main thread waits for will not come


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
