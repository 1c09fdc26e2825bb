"""Whole reads and writes on a descriptor, for confined processes, which have nothing but a pipe."""

from __future__ import annotations

import os
import select


def read_exactly(descriptor: int, count: int) -> bytes:
    """Exactly `count` bytes; empty at the end of the stream."""
    parts, missing = [], count
    while missing:
        part = os.read(descriptor, min(missing, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def await_hangup(descriptor: int) -> None:
    """Wait until the other end of a pipe is closed, whether or not there is something to read."""
    poll = select.poll()
    poll.register(descriptor, 0)  # a hangup is always reported
    poll.poll()
