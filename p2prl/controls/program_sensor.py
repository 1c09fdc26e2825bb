"""The watcher of programs: a process that tells, twice a second, which programs of its owner's list run.

It is a process of its own because a confined worker sees no other processes, and is to learn of no more than the list.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath

import psutil

from p2prl.controls.owner_values import MOST_NAMES

PERIOD_S = 0.5
"""Between two looks: a worker that looks once a second acts within two."""

_MOST_REQUEST_BYTES = 16 * 1024
"""A list of the longest names, escaped, fits."""

_COMMAND_PARTS = 6
"""Of a command line, among which an interpreter's `-m` stands."""


def running(names: Sequence[str], worker: int) -> list[str]:
    """Which of these programs run, as they are named here. Upper and lower case are alike.

    Processes below `worker`, a process id, and those of p2prl with all that they started never count.
    """
    wanted = {name.casefold(): name for name in names}
    found: dict[str, None] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            name = wanted.get(process.name().casefold())
            if name is None or name in found or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if not any(_is_own(each, worker) for each in (process, *process.parents())):
                found[name] = None
    return list(found)


def _is_own(process: psutil.Process, worker: int) -> bool:
    if process.pid == worker:
        return True
    try:
        return runs_p2prl(process.cmdline())
    except (psutil.Error, OSError):
        return False  # another user's


def runs_p2prl(command: Sequence[str]) -> bool:
    """Whether a command line is one of p2prl: its script, or a module of it. A file of that name does not count."""
    names = [PurePath(part).name for part in command[:2]]
    if "p2prl" in names[:1] or (names[1:] == ["p2prl"] and names[0].startswith("python")):
        return True
    place = next((place for place, part in enumerate(command[:_COMMAND_PARTS]) if part == "-m"), None)
    module = "" if place is None else "".join(command[place + 1 : place + 2])
    return module.partition(".")[0] == "p2prl" and names[0].startswith("python")


def watch(channel: socket.socket, worker: int) -> None:
    """Read one line, a list of names as JSON, and write a line at each look, until the other end closes."""
    data = b""
    while not data.endswith(b"\n"):
        part = channel.recv(_MOST_REQUEST_BYTES)
        if not part or len(data) > _MOST_REQUEST_BYTES:
            return
        data += part
    names = [str(name) for name in json.loads(data)][:MOST_NAMES]
    while True:
        try:
            channel.sendall(json.dumps({"running": running(names, worker)}).encode() + b"\n")
        except OSError:
            return
        if select.select([channel], [], [], PERIOD_S)[0]:
            return


if __name__ == "__main__":
    watch(socket.socket(fileno=int(sys.argv[2])), int(sys.argv[1]))
