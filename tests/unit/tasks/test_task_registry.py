"""Tasks by name: the built-in ones, those of installed packages, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.task_registry import TASKS, scorer_by_task, task_by_name
from p2prl.tasks.task_spec import SmallModel, TurnsDemonstration
from tests.unit.installed_package import install_package

ECHO = """
from p2prl.tasks.task import FAILED, Score
from p2prl.tasks.task_spec import TaskSpec

class Echo:
    name = "unit_echo"
    def prompt(self, seed):
        return str(seed % 10)
    def score(self, prompt, completion, finished):
        return Score(1.0) if finished and completion == prompt else FAILED

ECHO = TaskSpec(task=Echo(), goal="repeat", max_new_tokens=2)
"""


@pytest.mark.parametrize("name", ["chain4", "walk12"])
def test_builtin_tasks_are_complete(name: str) -> None:
    spec = task_by_name(name)
    assert spec.name == name
    assert spec.process_scorer is scorer_by_task(name)
    assert spec.small_model is not None
    assert not isinstance(spec.demonstration, TurnsDemonstration | None)
    prompt, completion = spec.demonstration(5)
    assert set(prompt + completion) <= set(spec.small_model.symbols)
    assert len(completion) < spec.max_new_tokens
    assert len(prompt) + 1 + spec.max_new_tokens <= spec.small_model.context


def test_a_misspelled_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown task 'chain5'") as caught:
        scorer_by_task("chain5")
    assert "chain4" in caught.value.remedy


def test_a_task_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"p2prl.tasks": {"unit_echo": "unit_echo:ECHO", "unit_parrot": "unit_echo:ECHO"}}
    install_package(tmp_path, monkeypatch, modules={"unit_echo": ECHO}, entry_points=entries)
    assert "unit_echo" in TASKS.names()
    assert task_by_name("unit_echo").task.prompt(7) == "7"
    with pytest.raises(ConfigError, match="no process scorer"):
        scorer_by_task("unit_echo")
    with pytest.raises(ConfigError, match="'unit_parrot' has the name 'unit_echo'"):
        task_by_name("unit_parrot")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"symbols": ""}, "symbols"),
        ({"symbols": "abca"}, "symbols"),
        ({"context": 0}, "context"),
        ({"heads": 7}, "heads"),
    ],
)
def test_impossible_small_models_are_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        SmallModel(**{"symbols": "abc", "context": 8, **change})
