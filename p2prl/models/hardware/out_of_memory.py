"""Recognition of running out of memory: each device of torch reports it in its own way."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress

import torch

_MESSAGES = ("not enough memory", "can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED")
"""Texts of the plain RuntimeError that CPU and MPS allocators raise, and cuBLAS and cuDNN without memory for
themselves."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error says that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def release_memory() -> None:
    """Return what failed work left behind."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(AttributeError):  # a C library without it, as musl, returns large blocks by itself
            ctypes.CDLL(None).malloc_trim(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
