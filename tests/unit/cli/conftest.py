"""A run folder for the commands that read one."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.config.new_run import init_run
from p2prl.config.presets import preset_by_name
from p2prl.learner.journal.journal import Journal
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.small_models.tiny_models import tiny_model


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose learner has been started once."""
    folder = tmp_path_factory.mktemp("cli")
    made = tiny_model(seed=3)
    made.model.save_pretrained(folder / "model")
    made.tokenizer.save_pretrained(folder / "model")
    plan = RunPlan(name="unit", goal="test", task="chain4", model=str(folder / "model"))
    settings = preset_by_name("chain4").settings_text()
    init_run(folder / "run", plan, settings=settings, on_progress=lambda stage, share: None)
    Journal(folder / "run" / "journal.db").close()
    return folder / "run"
