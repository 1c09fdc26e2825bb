"""Peers remembered across restarts: one small file in the folder of a run."""

from __future__ import annotations

import contextlib
from pathlib import Path

from p2prl.disk_full import replace_file
from p2prl.swarm.peers.peer_memory import MAX_FILE_BYTES


def read_peers(path: Path) -> bytes:
    """The file's bytes for `PeerMemory.restore`; empty when there is none, or one that is too large to be ours."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return b""
    return data if len(data) <= MAX_FILE_BYTES else b""


def write_peers(path: Path, data: bytes) -> None:
    """Replace the file. A failure is ignored: a full disk is reported elsewhere, and the peers only save a search."""
    with contextlib.suppress(OSError):
        replace_file(path, data)
