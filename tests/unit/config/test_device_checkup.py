"""The checkup of a device: a worker's steps in a worker's order, and a card that does not open is a finding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from p2prl.config import device_checkup
from p2prl.config.device_checkup import device_findings
from p2prl.errors import DeviceFailedError


def test_the_device_is_open_before_calls_are_refused_and_computes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def computed(name: str) -> dict[str, Any]:
        steps.append(f"compute on {name}")
        return {"verdict": "fits"}

    monkeypatch.setattr(device_checkup, "open_device", lambda name: steps.append(f"open {name}"))
    monkeypatch.setattr(device_checkup, "check_device", computed)
    found = device_findings("cuda:1", when_open=lambda: steps.append("refuse calls"))
    assert found["verdict"] == "fits"
    assert steps == ["open cuda:1", "refuse calls", "compute on cuda:1"]


@pytest.mark.parametrize(
    "error",
    [
        DeviceFailedError("cuda could not be opened: CUDA error: all devices are busy"),
        RuntimeError("operation not supported"),
    ],
)
def test_what_fails_is_a_finding_beside_the_build_of_torch(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise error

    monkeypatch.setattr(device_checkup, "open_device", fails)
    found = device_findings("cuda", when_open=lambda: pytest.fail("nothing is open"))
    assert (found["torch"], found["error"]) == (torch.__version__, str(error))
    assert "verdict" not in found
