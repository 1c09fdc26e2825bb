"""A new run ships golden groups, and a volunteer's engine is tested against them before any policy is here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from p2prl.config.new_run import init_run
from p2prl.config.roles import prepare_sampling
from p2prl.errors import MachineError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.engines.engine_names import ChosenEngine
from p2prl.models.engines.transformers.policy_model import PolicyModel

CPU = torch.device("cpu")
ENGINE = ChosenEngine("transformers", "as asked")
PLAN = RunPlan(name="golden", goal="test", task="chain4", model=None, temperature=0.8)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("p2prl.config.new_run.warm_start", lambda *_, **__: None)
    stages: list[tuple[str, float]] = []
    init_run(tmp_path / "golden", PLAN, settings="", on_progress=lambda *stage: stages.append(stage))
    assert [share for stage, share in stages if "self-test" in stage] == [0.0, 0.5, 1.0]
    return tmp_path / "golden"


def told_by_join(run: Path) -> list[str]:
    from p2prl.config.new_run import open_run

    folder = open_run(run)
    files = {file.name: run / "files" / file.name for file in folder.manifest.files}
    told: list[str] = []
    tools = prepare_sampling(folder.manifest, files, run=folder.run, device=CPU, engine=ENGINE, on_notice=told.append)
    tools.work.close()
    return told


def test_join_tells_the_result(run: Path) -> None:
    assert (run / "files" / "golden.json").stat().st_size < 64 * 1024
    assert json.loads((run / "files" / "golden.json").read_text())["temperature"] == 0.8
    (told,) = told_by_join(run)
    assert told.startswith("Self-test passed: noise of ")


def test_join_ends_on_a_machine_that_errs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PolicyModel.forward
    monkeypatch.setattr(PolicyModel, "forward", lambda *args, **kwargs: honest(*args, **kwargs).roll(1, -1))
    with pytest.raises(MachineError, match="other results") as error:
        told_by_join(run)
    assert error.value.exit_code == 4
