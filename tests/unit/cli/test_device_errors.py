"""Failures of memory and of a card, and what it cannot repeat, end in one sentence; everything else passes through."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from p2prl.cli.device_errors import device_failures_explained, out_of_memory_explained, unrepeatable_explained
from p2prl.config.machine_limits import MachineLimits
from p2prl.errors import ConfigError, DeviceFailedError, IntegrityError, MachineError


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
    limits = MachineLimits(ram_gb=8.0)
    with pytest.raises(MachineError, match="more than the 8 GB of --ram-gb"), out_of_memory_explained(limits):
        raise error
    with pytest.raises(MachineError, match="more than this machine's memory"), out_of_memory_explained(MachineLimits()):
        raise error
    with pytest.raises(RuntimeError, match="shapes"), out_of_memory_explained(MachineLimits(ram_gb=8.0)):
        raise RuntimeError("shapes cannot be multiplied")


@pytest.fixture
def repeatable() -> Iterator[None]:
    """As `repeat_exactly` asks for on a card. Few operations of a CPU are refused then, with the same words."""
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


@pytest.mark.usefixtures("repeatable")
def test_an_operation_that_does_not_repeat_is_named_with_a_remedy() -> None:
    with pytest.raises(ConfigError) as caught, device_failures_explained(), unrepeatable_explained():
        torch.zeros(3).put_(torch.tensor([0]), torch.tensor([1.0]))
    assert caught.value.exit_code == 3, "no other start helps: a service leaves it"
    assert str(caught.value).endswith(": put_ does not have a deterministic implementation")
    assert 'device = "cpu"' in caught.value.remedy


def test_cublas_is_named_where_its_memory_is_set_otherwise() -> None:
    text = (
        "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
        "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses "
        "CuBLAS and you have CUDA >= 10.2. To enable deterministic behavior in this case, you must set an environment "
        "variable before running your PyTorch application: CUBLAS_WORKSPACE_CONFIG=:4096:8"
    )
    with pytest.raises(ConfigError) as caught, unrepeatable_explained():
        raise RuntimeError(text)
    reason = ": this operation is not deterministic because it uses CuBLAS and you have CUDA >= 10.2"
    assert str(caught.value).endswith(reason)
    assert "unset CUBLAS_WORKSPACE_CONFIG" in caught.value.remedy


@pytest.mark.parametrize("error", [RuntimeError("shapes cannot be multiplied"), ValueError(), IntegrityError("bad")])
def test_errors_besides_pass_through(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, unrepeatable_explained():
        raise error
    assert caught.value is error
