"""The fork server's program: a clean environment, and the same packages as this process has."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from p2prl.confinement.children import Program

_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # the order of sets decides scores of some scorers
    "PYTHONDONTWRITEBYTECODE": "1",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "OMP_NUM_THREADS": "1",  # a process with one thread can be forked and confined
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""The whole environment of the fork server: nothing of the owner's, and the same on every machine."""

_START = (
    "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); "
    "from p2prl.tasks.sandbox.fork_server_main import main; main()"
)


def scorer_program(pool: int) -> Program:
    """The program of a fork server for the pool of process `pool`, whose number its command line shows."""
    path = [str(Path(__file__).resolve().parents[3]), *(entry for entry in sys.path if os.path.isabs(entry))]
    # Not -I: it would ignore PYTHONHASHSEED. The environment is ours, and -P -s leave out folder and user site.
    return Program(
        command=(sys.executable, "-P", "-s", "-c", _START, json.dumps(path), f"pool={pool}"),
        environment=_ENVIRONMENT,
        folder="/",
        silent=True,
    )
