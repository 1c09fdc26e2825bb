"""The status of a worker names the engine that samples, and why it is that one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from p2prl.cli.commands.join_worker import _Screen
from p2prl.cli.commands.owner_controls import plan_limits
from p2prl.cli.commands.worker_session import shown_prepare
from p2prl.cli.commands.worker_start import WorkerRequest, WorkerStart
from p2prl.cli.views.console import LiveView
from p2prl.cli.views.volunteer_view import EventLines
from p2prl.config.worker_folder import claim_worker_folder
from p2prl.confinement.role_confinement import Protection
from p2prl.controls.energy import EnergyUse
from p2prl.controls.owner_values import Price
from p2prl.models.engines.engine_names import ChosenEngine
from p2prl.models.engines.start_stages import tell_stage
from p2prl.protocol.digests import Digest
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.rollout_group import EngineClass

CHOSEN = ChosenEngine("vllm", "as the fastest on CUDA", fallback="transformers")
REFUSED = "vLLM rounds float32. Sampling with transformers instead."


@pytest.mark.parametrize(("engine", "reason"), [("vllm", CHOSEN.reason), ("transformers", REFUSED)])
def test_the_status_says_which_engine_samples_and_why(tmp_path: Path, engine: str, reason: str) -> None:
    worker = claim_worker_folder(tmp_path)
    limits = plan_limits(tmp_path, ram_gb=0.0, upload_mbit=0.0, monthly_gb=0.0, disk_gb=0.0)
    request = WorkerRequest(
        link="", kind="seat", home=tmp_path, limits=limits, listen=None, transport="hivemind", confine=False
    )
    link = JoinLink("unit", Digest(bytes(32)), ())
    start = WorkerStart(request=request, link=link, worker=worker, base=None, protection=Protection(asked=False))
    screen = _Screen(
        *(LiveView(quiet=True), EventLines(asked=False), start, "cuda", CHOSEN),
        mirrors=False,
        energy=lambda: (EnergyUse(), Price()),
    )

    def prepare(*_: Any) -> Any:
        if engine != CHOSEN.name:
            screen.tell(REFUSED)
        return SimpleNamespace(sampler=SimpleNamespace(engine_class=EngineClass(engine, "1.0", "float32", "H100")))

    screen.tell("an earlier message")
    unused: Any = None
    screen.around(prepare)(unused, unused)
    screen.tell("a later message")
    screen.status.write({"state": "sampling"})
    written = json.loads((worker.run_directory(link.run) / "status.json").read_bytes())
    expected = {"engine": engine, "version": "1.0", "dtype": "float32", "device": "H100", "reason": reason}
    assert written["engine"] == expected
    assert written["state"] == "sampling"
    worker.release()


def test_the_stages_of_an_engine_are_shown_while_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    phases: list[tuple[str, str]] = []
    view: Any = SimpleNamespace(phase=lambda name, detail="": phases.append((name, detail)))

    def prepare(*_: Any) -> str:
        tell_stage("vLLM: reading its code")
        return "tools"

    unused: Any = None
    assert shown_prepare(prepare, view)(unused, unused) == "tools"
    assert phases == [("loading the engine", ""), ("loading the engine", "vLLM: reading its code")]
