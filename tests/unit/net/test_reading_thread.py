"""Chunks read by a thread: bounds, cancellation and the end."""

from __future__ import annotations

import threading

import pytest

from p2prl.errors import IntegrityError
from p2prl.net.storage.reading_thread import ReadingThread
from p2prl.protocol.manifests import BlobRef, blob_of

DATA = bytes(range(256)) * 16 * 100
REF = blob_of(DATA, 4096)


class SlowDisk:
    """Reads one chunk each time the test lets it."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.may_read = threading.Semaphore(0)
        self.came = threading.Semaphore(0)
        self.thread = ReadingThread(self.read, self.came.release)

    def read(self, ref: BlobRef, index: int) -> bytes:
        self.begun.append(index)
        assert self.may_read.acquire(timeout=30)
        if index == 99:
            raise IntegrityError("damaged")
        offset, length = ref.span(index)
        return DATA[offset : offset + length]

    def let(self, count: int) -> None:
        """Let this many chunks be read, and wait for them."""
        for _ in range(count):
            self.may_read.release()
            assert self.came.acquire(timeout=30)

    def close(self) -> None:
        self.may_read.release(1000)
        self.thread.close()


def test_chunks_come_in_the_order_they_were_asked_for() -> None:
    disk = SlowDisk()
    assert [disk.thread.ready(REF, index) for index in (3, 1, 3, 2)] == [False] * 4
    disk.let(3)
    assert disk.begun == [3, 1, 2], "once, although asked for twice"
    for index in (1, 2, 3):
        assert disk.thread.ready(REF, index)
        assert disk.thread.take(REF, index) == DATA[4096 * index : 4096 * (index + 1)]
        assert disk.thread.take(REF, index) is None
    disk.close()


def test_an_error_is_raised_where_the_chunk_is_taken() -> None:
    disk = SlowDisk()
    disk.thread.ready(REF, 99)
    disk.let(1)
    assert disk.thread.ready(REF, 99)
    with pytest.raises(IntegrityError, match="damaged"):
        disk.thread.take(REF, 99)
    disk.thread.ready(REF, 5)
    disk.let(1)
    assert disk.thread.ready(REF, 5)
    disk.close()


def test_what_waits_and_what_nobody_takes_is_bounded() -> None:
    disk = SlowDisk()
    for index in range(99):
        disk.thread.ready(REF, index)
    disk.let(64)
    assert len(disk.begun) in (64, 65), "64 wait, and one more if the first had left the queue by then"
    held = [index for index in range(99) if disk.thread.take(REF, index) is not None]
    assert held == disk.begun[64 - 8 : 64]
    disk.close()


def test_a_dropped_blob_is_not_read_and_not_kept() -> None:
    disk = SlowDisk()
    other = BlobRef(REF.size_bytes, REF.chunk_bytes, bytes(32))
    disk.thread.ready(REF, 0)
    disk.let(1)
    for index in (1, 2):
        disk.thread.ready(REF, index)
    disk.thread.ready(other, 7)
    disk.thread.forget(REF.root)
    disk.may_read.release(3)
    while not disk.thread.ready(other, 7):
        assert disk.came.acquire(timeout=30)
    assert disk.thread.take(REF, 0) is None
    assert disk.thread.take(REF, 1) is None
    assert 2 not in disk.begun
    disk.close()
