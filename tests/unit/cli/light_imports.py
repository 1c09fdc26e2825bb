"""Run short programs that must not import heavy libraries, each in a fork of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

_FORKS = """
import json, os, sys, traceback
programs, loaded = json.loads(sys.argv[1])
for module in loaded:
    __import__(module)
for number, program in enumerate(programs):
    reader, writer = os.pipe()
    if os.fork() == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        try:
            exec(program, {"__name__": "__main__"})
            told = ""
        except BaseException:
            told = traceback.format_exc()
        os.write(writer, told.encode())
        os._exit(0 if not told else 1)
    os.close(writer)
    with open(reader) as pipe:
        told = pipe.read()
    _, status = os.wait()
    print(json.dumps(told or ("" if status == 0 else f"status {status}")))
"""


def outcomes(programs: Sequence[str], *, loaded: Sequence[str] = ("p2prl.cli.app",)) -> list[str]:
    """What each program raised, as text; empty for one that ended well.

    `loaded` are modules of the process that is forked for each program.
    """
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, json.dumps([list(programs), list(loaded)])],
        check=True,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
