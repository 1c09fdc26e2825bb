"""Recognition of a graphics card or driver that failed while it computed: nothing works on it before a new process."""

from __future__ import annotations

import torch

from p2prl.models.hardware.out_of_memory import is_out_of_memory

_MESSAGES = (
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

    Running out of memory is none (`out_of_memory`): the card works on.
    """
    named = type(error).__name__ in _ENGINE_ERRORS
    reported = isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)
    if is_out_of_memory(error) or not (named or reported or isinstance(error, torch.AcceleratorError)):
        return ""
    return first_line(error)


def first_line(error: BaseException) -> str:
    """The first line of an error that is not blank: the libraries add advice below it."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
