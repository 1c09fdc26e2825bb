"""Memory that the C library keeps goes back to the system."""

from __future__ import annotations

import platform

import psutil
import pytest

from p2prl.models.hardware.heap import trim_heap


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_blocks_below_one_that_is_used_go_back() -> None:
    this = psutil.Process()
    blocks = [bytearray(1000) for _ in range(100_000)]
    above = bytearray(1000)
    blocks.clear()
    before = this.memory_info().rss
    trim_heap()
    assert before - this.memory_info().rss > 50_000_000
    assert len(above) == 1000
