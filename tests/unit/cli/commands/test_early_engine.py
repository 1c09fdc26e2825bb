"""The engine that a worker knows without torch: on a CPU, on Linux, with no engine that needs more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2prl.cli.commands import worker_start
from p2prl.cli.commands.owner_controls import plan_limits
from p2prl.cli.commands.worker_start import WorkerRequest, engine_off_cards
from p2prl.models.engines.registry import choose_engine
from p2prl.models.hardware.device_choice import choose_device


def request(home: Path, device: str, engine: str) -> WorkerRequest:
    limits = plan_limits(home, ram_gb=0.0, upload_mbit=0.0, monthly_gb=0.0, disk_gb=0.0)
    return WorkerRequest(
        link="", kind="seat", home=home, limits=limits, listen=None, transport="hivemind", device=device, engine=engine
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems ask torch")
def test_the_engine_is_the_one_that_torch_would_lead_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = tmp_path / "nvidiactl"
    monkeypatch.setattr(worker_start, "_ACCELERATORS", (str(card),))

    def known(device: str, engine: str = "auto") -> bool:
        return engine_off_cards(request(tmp_path, device, engine)) is not None

    for engine in ("auto", "transformers"):
        early = engine_off_cards(request(tmp_path, "cpu", engine))
        assert early == choose_engine(engine, choose_device("cpu"))
    assert [known("auto"), known("cuda"), known("RTX"), known("cpu", "vllm")] == [True, False, False, False]
    card.touch()
    assert [known("auto"), known("cpu"), known("auto", "transformers")] == [False, True, False]
