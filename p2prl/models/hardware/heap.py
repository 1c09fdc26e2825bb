"""The C library's heap, which keeps memory that was freed."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress


def trim_heap() -> None:
    """Give memory that is free to the system, where the C library can (glibc); others return large blocks at once."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
