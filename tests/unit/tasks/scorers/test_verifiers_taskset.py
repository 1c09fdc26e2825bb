"""Tasksets of `verifiers`: rows and scores of a single-turn one, and a sentence for each that needs more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.row_scorer import RowScorer
from p2prl.tasks.scorers.answer_text import UnusableRowError
from p2prl.tasks.scorers.build import build_scorer
from p2prl.tasks.scorers.row_sources import is_generated, rows
from p2prl.tasks.scorers.verifiers_taskset import parse_source

pytest.importorskip("verifiers", reason="needs the extra verifiers")
pytestmark = pytest.mark.extra

TASKSET = """
import asyncio
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str
    difficulty: int = 0

class Doubles(vf.Task[Data]):
    {members}
    @vf.reward(weight=1.0)
    async def correct(self, task, trace) -> float:
        {wait}
        return float(trace.last_reply == task.answer)

    @vf.reward(weight=0.25)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 5)

    @vf.reward(weight=-2.0)
    async def truncated(self, trace) -> dict[str, float]:
        return dict(cut=float(trace.is_truncated))

class Config(vf.TasksetConfig):
    count: int = 5

class DoubleSet(vf.Taskset[Doubles, Config]):
    INFINITE = {infinite}
    def load(self):
        for n in range(self.config.count):
            data = Data(prompt={prompt}, system_prompt="A number.", answer=str(2 * n), difficulty=n)
            yield Doubles(data, self.config.task)

__all__ = ["DoubleSet"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write(
    folder: Path, name: str, *, members: str = "", wait: str = "", infinite: bool = False, prompt: str = "f'{n}+{n}?'"
) -> None:
    text = TASKSET.format(members=members or "pass", wait=wait or "pass", infinite=infinite, prompt=prompt)
    (folder / f"{name}.py").write_text(text)


def scorer(name: str) -> RowScorer:
    return build_scorer(f'{{"rewards":[{{"scorer":"verifiers","taskset":"{name}","weight":1.0}}]}}', None)


def test_rows_and_scores(folder: Path) -> None:
    write(folder, "p2prl_doubles")
    reports: list[tuple[int, int]] = []
    assert is_generated("verifiers:p2prl_doubles")
    made = list(rows("verifiers:p2prl_doubles?size=3&count=9", lambda *progress: reports.append(progress)))
    assert reports == [(1, 3), (2, 3), (3, 3)]
    assert made == json.loads(json.dumps(made))
    assert made[2]["prompt"] == [{"role": "system", "content": "A number."}, {"role": "user", "content": "2+2?"}]
    assert made[2]["answer"] == "4"
    built = scorer("p2prl_doubles")
    assert built.score(made[2], " 4\n", True) == 1.25
    assert built.score(made[2], "it is 4", True) == 0.0
    assert built.score(made[2], "6", True) == 0.25
    assert built.score(made[2], "4", False) == -0.75
    with pytest.raises(UnusableRowError, match="'p2prl_doubles'"):
        built.score({"prompt": "2+2?", "answer": "4"}, "4", True)


def test_rewards_that_wait(folder: Path) -> None:
    write(folder, "p2prl_waits", wait="await asyncio.sleep(0)")
    (row,) = rows("verifiers:p2prl_waits?size=1")
    with pytest.raises(TypeError, match="'correct' waits for something"):
        scorer("p2prl_waits").score(row, "0", True)


@pytest.mark.parametrize(
    ("name", "members", "reason"),
    [
        ("p2prl_container", "NEEDS_CONTAINER = True", "needs a container"),
        ("p2prl_setup", "async def setup(self, trace, runtime): pass", r"has its own setup\(\)"),
        ("p2prl_tools", "toolsets = classmethod(lambda cls, config: [object()])", "has tools"),
    ],
)
def test_tasksets_that_need_more_than_one_answer(folder: Path, name: str, members: str, reason: str) -> None:
    write(folder, name, members=members)
    with pytest.raises(ConfigError, match=reason) as caught:
        list(rows(f"verifiers:{name}"))
    assert "single-turn" in caught.value.remedy
    with pytest.raises(ConfigError, match=reason):
        scorer(name)


def test_tasksets_without_an_end(folder: Path) -> None:
    write(folder, "p2prl_endless", infinite=True)
    with pytest.raises(ConfigError, match="has no end"):
        list(rows("verifiers:p2prl_endless"))
    assert len(list(rows("verifiers:p2prl_endless?size=2"))) == 2


def test_tasks_without_a_prompt(folder: Path) -> None:
    write(folder, "p2prl_silent", prompt="None")
    with pytest.raises(ConfigError, match="no prompt of text"):
        list(rows("verifiers:p2prl_silent"))


@pytest.mark.parametrize(
    "source",
    ["verifiers:", "verifiers:a/b", "verifiers:p2prl_absent", "verifiers:json", "verifiers:x?size=0", "verifiers:x?y"],
)
def test_unusable_sources(source: str) -> None:
    with pytest.raises(ConfigError) as caught:
        list(rows(source))
    assert caught.value.remedy


def test_unknown_setting(folder: Path) -> None:
    write(folder, "p2prl_settings")
    assert parse_source("verifiers:p2prl_settings?cuont=3") == ("p2prl_settings", {"cuont": 3}, None)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        list(rows("verifiers:p2prl_settings?cuont=3"))
