"""Incoming transfer at full rate: the load of a network process while weights arrive.

Kept in a separate module, so that the process does not import torch.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

from blake3 import blake3

CHUNK_BYTES = 1 << 20
_FILE_CHUNKS = 128


def receive_chunks(path: Path, received: Any, stop: Any) -> None:
    """Receive chunks from a socket until `stop` is set, hash them and write them to one file used as a ring.

    `received` is a shared counter of bytes, `stop` an event; both come from `multiprocessing`.
    """
    source, sink = socket.socketpair()

    def send() -> None:
        chunk = bytes(CHUNK_BYTES)
        with contextlib.suppress(OSError):  # the receiver closes first
            while not stop.is_set():
                source.sendall(chunk)

    threading.Thread(target=send, daemon=True).start()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with path.open("wb") as file:
        while not stop.is_set():
            size = sink.recv_into(buffer)
            blake3(buffer[:size]).digest()
            if file.tell() > _FILE_CHUNKS * CHUNK_BYTES:
                file.seek(0)
            file.write(buffer[:size])
            received.value += size
    sink.close()
