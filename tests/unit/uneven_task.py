"""A task of somebody else's package whose prompts vary in length: one in four exceeds a small model's context."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.tasks.task_registry import TASKS
from tests.unit.installed_package import install_package

NAME = "unit_uneven"
SHORT, LONG = 5, 40
"""Symbols of a prompt; the longest are those of the seeds that four divides."""

_SOURCE = f"""
from p2prl.tasks.task import FAILED, Score
from p2prl.tasks.task_spec import TaskSpec

LONG = {LONG}

class Uneven:
    name = "{NAME}"
    def prompt(self, seed):
        return "7" * ({SHORT} if seed % 4 else LONG)
    def score(self, prompt, completion, finished):
        return Score(1.0) if finished else FAILED

UNEVEN = TaskSpec(task=Uneven(), goal="stop", max_new_tokens=8)
"""


def install_uneven_task(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install the package in `folder`; return the task's name. Other tests' copies of it are not used."""
    loaded = {name: task for name, task in TASKS._loaded.items() if name != NAME}
    monkeypatch.setattr(TASKS, "_loaded", loaded)
    install_package(
        folder,
        monkeypatch,
        modules={"unit_uneven_task": _SOURCE},
        entry_points={"p2prl.tasks": {NAME: "unit_uneven_task:UNEVEN"}},
    )
    return NAME
