"""A command of `p2prl` with its CPU seconds by thread: `python -m p2prl_lab.thread_cpu ARGUMENTS…`.

Twice a second it writes a JSON object, thread's name → CPU seconds, to the file that the environment names. Threads of
libraries, which Python does not know, are counted together.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from pathlib import Path

import psutil

from p2prl.cli import main

FILE = "P2PRL_LAB_THREAD_CPU"
"""Environment variable with the path of the file."""

LIBRARIES = "libraries"
_PERIOD_S = 0.5


def _watch(path: Path) -> None:
    process, names, spent = psutil.Process(), dict[int, str](), dict[int, float]()
    while True:
        names.update({each.native_id: each.name for each in threading.enumerate() if each.native_id is not None})
        spent.update({each.id: each.user_time + each.system_time for each in process.threads()})
        total: defaultdict[str, float] = defaultdict(float)
        for number, seconds in spent.items():
            name = names.get(number, LIBRARIES)
            total["thread pools" if name.startswith("ThreadPoolExecutor") else name] += seconds
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(total))
        unfinished.replace(path)
        threading.Event().wait(_PERIOD_S)


if __name__ == "__main__":
    threading.Thread(target=_watch, args=(Path(os.environ[FILE]),), name="watch", daemon=True).start()
    main()
