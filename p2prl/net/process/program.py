"""The network process's program, and the folders it is confined to."""

from __future__ import annotations

import sys
from pathlib import Path

from p2prl.confinement.children import Program

NEW_RELAYS_STATUS = 3
"""Exit status of a network process that is to be started again, to have other relay candidates: no failure."""


def network_program(own: Path | None = None, sockets: Path | None = None) -> Program:
    """The program; with `own` (its worker's folder) and `sockets` (its daemon's), confined to these two.

    Ctrl-C in the terminal is the role's to handle; it closes the socket.
    """
    folders = () if own is None or sockets is None else (str(own), str(sockets))
    return Program(
        command=(sys.executable, "-m", "p2prl.net.process", *folders),
        extra={"OMP_NUM_THREADS": "1"},
    )
