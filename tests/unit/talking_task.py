"""An environment of somebody else's package that talks whatever the model says, for up to five turns.

Its alphabet is so small that a model with random weights ends many turns by chance. It likes to hear ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.tasks.task_registry import TASKS
from tests.unit.installed_package import install_package

NAME = "unit_talk"
MAX_NEW_TOKENS = 40

_SOURCE = f"""
from p2prl.tasks.environment import EnvironmentTask
from p2prl.tasks.task import Score
from p2prl.tasks.task_spec import SmallModel, TaskSpec

class Talk:
    name = "{NAME}"
    def opening(self, seed):
        return "01"[seed % 2] * 3
    def reply(self, seed, turns):
        if len(turns) == 5:
            return None
        return "ab"[seed % 2] + "ab"[turns[-1].count("1") % 2] * (len(turns[-1]) % 3)
    def score(self, seed, turns, finished):
        said = "".join(turns)
        return Score(reward=said.count("1") / max(8, len(said)))

TALK = TaskSpec(
    task=EnvironmentTask(Talk()),
    goal="talk",
    max_new_tokens={MAX_NEW_TOKENS},
    small_model=SmallModel(symbols="01ab", context=48),
)
"""


def install_talking_task(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install the package in `folder`; return the task's name. Other tests' copies of it are not used."""
    loaded = {name: task for name, task in TASKS._loaded.items() if name != NAME}
    monkeypatch.setattr(TASKS, "_loaded", loaded)
    install_package(
        folder,
        monkeypatch,
        modules={"unit_talking_task": _SOURCE},
        entry_points={"p2prl.tasks": {NAME: "unit_talking_task:TALK"}},
    )
    return NAME
