"""Failures of memory and of a graphics card end in one sentence; everything else passes through unchanged."""

from __future__ import annotations

import pytest
import torch

from p2prl.cli.device_errors import device_failures_explained, out_of_memory_explained
from p2prl.errors import DeviceFailedError, IntegrityError, MachineError


class EngineDeadError(Exception):
    """As an engine names its end whose own process computes."""


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (
            torch.AcceleratorError("CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA"),
            "CUDA error: unspecified launch failure",
        ),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"),
            "when calling cublasGemmEx",
        ),
        (
            RuntimeError("\nHIP error: the operation cannot be performed in the present state\n"),
            "performed in the present state",
        ),
        (EngineDeadError("EngineCore encountered an issue."), "EngineCore encountered an issue."),
        (EngineDeadError(), "EngineDeadError"),
    ],
)
def test_a_card_that_fails_is_worth_another_start(error: Exception, reported: str) -> None:
    with pytest.raises(DeviceFailedError) as caught, device_failures_explained():
        raise error
    assert caught.value.exit_code == 75, "a service starts it again"
    assert str(caught.value).endswith(reported)
    assert "\n" not in str(caught.value)
    assert "p2prl doctor" in caught.value.remedy


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError("CUDA error in a text of somebody's"),
        IntegrityError("CUDA error"),
        KeyboardInterrupt(),
    ],
)
def test_other_errors_are_left_as_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, device_failures_explained():
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ],
)
def test_memory_that_runs_out_names_the_limit(error: BaseException) -> None:
    with pytest.raises(MachineError, match="more than the 8 GB of --ram-gb"), out_of_memory_explained(8.0):
        raise error
    with pytest.raises(MachineError, match="more than this machine's memory"), out_of_memory_explained(0.0):
        raise error
    with pytest.raises(RuntimeError, match="shapes"), out_of_memory_explained(8.0):
        raise RuntimeError("shapes cannot be multiplied")
