"""Choice of kernels: compiled by numba where it is installed and worth the compile time, numpy otherwise."""

from __future__ import annotations

from functools import cache

from p2prl.patches.kernels import NUMPY_KERNELS, Kernels

_COMPILE_BYTES = 256 * 1024 * 1024
"""Weights of at least this size justify the three seconds and 70 MB that compiling costs."""


@cache
def fastest_kernels() -> Kernels:
    """Compiled kernels if numba is installed, numpy's otherwise."""
    try:
        from p2prl.patches.numba_kernels import NumbaKernels
    except ImportError:
        return NUMPY_KERNELS
    return NumbaKernels()


def kernels_for(size_bytes: int) -> Kernels:
    """The fastest kernels for weights of this size, compile time included. Both give the same bytes."""
    return NUMPY_KERNELS if size_bytes < _COMPILE_BYTES else fastest_kernels()
