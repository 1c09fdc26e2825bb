"""Devices of the roles: a learner's repeats every update, a worker's is open before the worker is confined."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import p2prl.cli.commands
from p2prl.errors import DeviceFailedError
from p2prl.models.hardware import device_choice
from p2prl.models.hardware.device_choice import open_device, repeat_exactly


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Left as they were."""
    for name in ("CUBLAS_WORKSPACE_CONFIG", "FLASH_ATTENTION_DETERMINISTIC"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


@pytest.mark.usefixtures("settings")
def test_what_cannot_repeat_on_cuda_is_an_error_and_no_warning() -> None:
    """With warnings, torch's attention takes a backward pass whose sums have no fixed order."""
    repeat_exactly(torch.device("cuda"))
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8", "without it cuBLAS raises at the first product"


@pytest.mark.usefixtures("settings")
def test_other_devices_repeat_anyway() -> None:
    repeat_exactly(torch.device("cpu"))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("worker", "opens"), [("join_worker", " = _opened("), ("validate_worker", "chosen = open_device(")]
)
def test_a_worker_opens_its_card_before_it_is_confined(worker: str, opens: str) -> None:
    """The steps need a card, so their order is looked for in the text."""
    (folder,) = p2prl.cli.commands.__path__
    source = (Path(folder) / f"{worker}.py").read_text()
    assert source.index(opens) < source.index("start.seal()")
    _, _, opened = source.partition("def _opened(")
    assert "open_device(" in (opened.partition("\ndef ")[0] or source)


def test_a_card_that_does_not_open_is_one_sentence_without_torchs_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise torch.AcceleratorError("CUDA error: all devices are busy\nCompile with `TORCH_USE_CUDA_DSA`")

    monkeypatch.setattr(device_choice, "choose_device", lambda name: torch.device(name))
    monkeypatch.setattr(torch, "zeros", refused)
    with pytest.raises(DeviceFailedError) as caught:
        open_device("cuda:1")
    assert str(caught.value) == "cuda:1 could not be opened: CUDA error: all devices are busy"
    assert "--device cpu" in caught.value.remedy
    assert open_device("cpu") == torch.device("cpu"), "nothing is opened for it"
