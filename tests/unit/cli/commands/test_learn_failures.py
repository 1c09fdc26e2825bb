"""`p2prl learn` ends in one sentence where its device fails or cannot repeat an update, and leaves a status."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from p2prl.cli.commands.learn import learn_command
from p2prl.cli.options import NetworkOptions
from p2prl.config.new_run import init_run
from p2prl.config.presets import preset_by_name
from p2prl.errors import ConfigError, DeviceFailedError, P2PRLError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.learner.service import Learner
from p2prl.models.small_models.tiny_models import tiny_model

REFUSED = "cumsum_cuda_kernel does not have a deterministic implementation"


def make_run(tmp_path: Path) -> Path:
    """The folder of a run of a tiny model."""
    run = tmp_path / "run"
    made = tiny_model(seed=3)
    made.model.save_pretrained(tmp_path / "model")
    made.tokenizer.save_pretrained(tmp_path / "model")
    plan = RunPlan(name="unit", goal="test", task="chain4", model=str(tmp_path / "model"))
    settings = preset_by_name("chain4").settings_text()
    init_run(run, plan, settings=settings, on_progress=lambda stage, share: None)
    return run


def learn(run: Path) -> None:
    learn_command(run, NetworkOptions(), updates=1, as_json=True)


def test_a_board_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="listed nowhere"):
        learn_command(make_run(tmp_path), NetworkOptions(), updates=1, board="https://board.example.org", as_json=True)


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (
            RuntimeError(f"{REFUSED}, but you set 'torch.use_deterministic_algorithms(True)'. You can turn off"),
            ConfigError,
            REFUSED,
        ),
        (RuntimeError("CUDA error: unspecified launch failure\nCompile with"), DeviceFailedError, "launch failure$"),
    ],
)
def test_an_error_of_the_device_is_a_sentence(
    error: Exception, kind: type[P2PRLError], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)

    def fails(learner: Learner, *_: Any, **__: Any) -> None:
        learner.close()
        raise error

    monkeypatch.setattr(Learner, "run", fails)
    with pytest.raises(kind, match=sentence):
        learn(run)


def test_the_last_report_is_that_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an update for hours, the time of the newest one is long past."""
    run, began = make_run(tmp_path), time.time()
    monkeypatch.setattr(Learner, "run", lambda learner, *_, **__: learner.close())
    learn(run)
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "stopped"
    assert began <= status["time"] <= time.time()
