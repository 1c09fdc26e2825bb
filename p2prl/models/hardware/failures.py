"""Recognition of a device that failed while it computed, or ran out of memory: torch reports each in its own way."""

from __future__ import annotations

import gc

import torch

from p2prl.models.hardware.heap import trim_heap

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
    trim_heap()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


_FAILURES = (
    "CUDA error",
    "CUDA driver error",
    "cuDNN error",
    "CUDNN_STATUS",
    "CUBLAS_STATUS",
    "HIP error",
    "MPS error",
)
"""Texts of the plain RuntimeError of libraries that report a card's failure themselves, and of older torch."""

_ENGINE_ERRORS = ("EngineDeadError",)
"""Names of errors by which an engine with a process of its own says that the process died. vLLM is not imported."""


def device_failure(error: BaseException) -> str:
    """The first line of what the card or its driver reported, empty when this error is another.

    Running out of memory is none (`is_out_of_memory`): the card works on.
    """
    named = type(error).__name__ in _ENGINE_ERRORS
    reported = isinstance(error, RuntimeError) and any(message in str(error) for message in _FAILURES)
    if is_out_of_memory(error) or not (named or reported or isinstance(error, torch.AcceleratorError)):
        return ""
    return first_line(error)


def first_line(error: BaseException) -> str:
    """The first line of an error that is not blank: the libraries add advice below it."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
