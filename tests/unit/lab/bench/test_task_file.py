"""Tasks from a file: through the registry's door, with a clear sentence for each bad file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.task import Score
from p2prl.tasks.task_registry import TASKS
from p2prl_lab.bench.staleness.results import version_of
from p2prl_lab.bench.training.environment_checks import check_environment
from p2prl_lab.bench.training.environments import Environment, environment_by_name
from p2prl_lab.bench.training.task_file import offer_task_file
from p2prl_lab.bench.training.warm_start import warm_path

GOOD = '''
"""Copy a digit."""
from dataclasses import dataclass

from p2prl.tasks.task import FAILED, Score
from p2prl.tasks.task_spec import SmallModel, TaskSpec


@dataclass(frozen=True)
class Copy:
    name: str = "{name}"

    def prompt(self, seed):
        return str(seed % 10) + "="

    def score(self, prompt, completion, finished):
        return Score(reward=float(finished and completion == prompt[0]))


COPY = TaskSpec(
    task=Copy(), goal="copy", max_new_tokens=2, small_model=SmallModel(symbols="0123456789=", context=8),
    demonstration=lambda seed: (Copy().prompt(seed), str(seed % 10)),
)
'''


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offered tasks last as long as the process; those of a test last as long as the test."""
    monkeypatch.setattr(TASKS, "_offered", {})
    monkeypatch.setattr(TASKS, "_loaded", dict(TASKS._loaded))


def written(folder: Path, text: str, name: str = "own.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_file_defines_a_task_that_benchmarks_find_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.format(name="copy_a"))
    assert offer_task_file(path) == "copy_a"
    environment = environment_by_name("copy_a")
    check_environment(environment)
    assert environment.task.score("7=", "7", True) == Score(reward=1.0)
    assert "copy_a" in TASKS.names()
    assert environment_by_name("chain4").origin == ""


def test_results_and_warm_starts_of_a_changed_file_are_not_reused(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.format(name="copy_b"))
    offer_task_file(path)
    before = version_of("copy_b", "grpo"), warm_path(environment_by_name("copy_b"), 0, tmp_path)
    offer_task_file(path)
    assert (version_of("copy_b", "grpo"), warm_path(environment_by_name("copy_b"), 0, tmp_path)) == before
    written(tmp_path, GOOD.format(name="copy_b") + "\n# another meaning\n")
    offer_task_file(path)
    assert version_of("copy_b", "grpo") != before[0]
    assert version_of("copy_b", "grpo").startswith("measures=")
    assert warm_path(environment_by_name("copy_b"), 0, tmp_path) != before[1]


def test_one_of_several_tasks_is_chosen_by_its_name(tmp_path: Path) -> None:
    two = GOOD.format(name="copy_c") + "\nOTHER = __import__('dataclasses').replace(COPY, task=Copy(name='copy_d'))\n"
    path = written(tmp_path, two)
    with pytest.raises(ConfigError, match="2 TaskSpecs: COPY, OTHER") as caught:
        offer_task_file(path)
    assert f"{path}:COPY" in caught.value.remedy
    assert offer_task_file(f"{path}:OTHER") == "copy_d"
    with pytest.raises(ConfigError, match="no TaskSpec called 'Copy'"):
        offer_task_file(f"{path}:Copy")
    same = written(tmp_path, GOOD.format(name="copy_e") + "\nALIAS = COPY\n", "same.py")
    assert offer_task_file(same) == "copy_e"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "0 TaskSpecs"),
        ("def broken(:", r"own.py, line 1 cannot be imported: SyntaxError"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit"),
        (GOOD.format(name="chain4"), "'chain4' exists already"),
        (GOOD.format(name="a/../b"), "is no name for a task"),
        (GOOD.format(name=""), "is no name for a task"),
    ],
)
def test_a_bad_file_is_refused_with_a_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        offer_task_file(written(tmp_path, text))
    assert caught.value.remedy


def test_a_missing_file_and_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the task file"):
        offer_task_file(str(tmp_path / "absent.py"))
    with pytest.raises(ConfigError, match="cannot read the task file"):
        offer_task_file(str(tmp_path))
    with pytest.raises(ConfigError, match="not a Python file"):
        offer_task_file(written(tmp_path, GOOD.format(name="copy_f"), "own.txt"))
    with pytest.raises(ConfigError, match="not a Python file"):
        offer_task_file(written(tmp_path, "#" * ((1 << 20) + 1), "long.py"))


@dataclasses.dataclass
class Odd:
    """A task with one fault."""

    fault: str
    name: str = "odd"
    calls: int = 0

    def prompt(self, seed: int) -> str:
        self.calls += 1
        if self.fault == "raises" and seed == 3:
            raise KeyError(seed)
        faulty = {"symbols": "x=", "moving": f"{self.calls % 10}=", "empty": "", "number": 7, "long": "1" * 1025}
        if self.fault == "length" and seed == 5:
            return "12="
        return faulty.get(self.fault, f"{seed % 10}=")  # type: ignore[return-value]

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        self.calls += 1
        if self.fault == "score raises" and not completion:
            raise IndexError
        rewards = {"too much": 2.0, "negative": -0.1, "undefined": float("nan"), "flaky": self.calls % 2}
        return Score(reward=rewards.get(self.fault, float(finished)))


def odd(fault: str, completion: str = "7") -> Environment:
    task = Odd(fault)
    base = environment_by_name("chain4")
    return dataclasses.replace(
        base, task=task, max_new_tokens=2, demonstration=lambda seed: (f"{seed % 10}=", completion)
    )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", "seed 3 raises KeyError"), ("symbols", "'x', which is not among"),
        ("length", "seeds 0 and 5 differ"),
        ("empty", "empty"), ("number", "not text"), ("moving", "different prompts"), ("too much", "within 0..1"),
        ("negative", "within 0..1"), ("undefined", "within 0..1"), ("flaky", "one reward"),
        ("score raises", "score of '' raises IndexError"), ("long", "1,025 symbols"),
    ],
)  # fmt: skip
def test_a_faulty_task_is_refused_before_training(fault: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_environment(odd(fault))


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (lambda: 1 // 0, "score of '7' raises ZeroDivisionError"), (lambda: float("nan"), "'7' is scored nan"),
        (lambda: 1.01, "'7' is scored 1.01"), (lambda: -0.01, "'7' is scored -0.01"), (lambda: "1", "raises TypeError"),
    ],
)  # fmt: skip
def test_a_fault_that_shows_in_training_names_the_task(rewards: Callable[[], Any], message: str) -> None:
    """Sixteen seeds do not meet every branch of a task."""

    @dataclasses.dataclass
    class Late:
        name: str = "late"

        def prompt(self, seed: int) -> str:
            if seed == 999:
                raise RuntimeError("far away")
            return {77: "12=", 78: "x="}.get(seed, "1=")

        def score(self, prompt: str, completion: str, finished: bool) -> Score:
            return Score(reward=rewards() if completion == "7" else 0.5)

    environment = dataclasses.replace(odd(""), task=Late())
    seven, end = environment.symbols.index("7"), environment.end_token
    assert environment.reward("1=", [end], True) == 0.5
    with pytest.raises(ConfigError, match=f"task 'late' .*{message}") as caught:
        environment.reward("1=", [seven, end], True)
    assert caught.value.remedy
    assert environment.prompt(5) == "1="
    for seed, reason in ((77, "seeds 0 and 77 differ"), (78, "seed 78 uses 'x'"), (999, "far away")):
        with pytest.raises(ConfigError, match=reason):
            environment.prompt(seed)


def test_sizes_that_do_not_fit_are_refused() -> None:
    check_environment(odd(""))
    with pytest.raises(ConfigError, match="longer than max_new_tokens"):
        check_environment(odd("", completion="77"))
    shape = dataclasses.replace(odd("").shape, context=4)
    with pytest.raises(ConfigError, match="context of 4"):
        check_environment(dataclasses.replace(odd(""), shape=shape))
    check_environment(dataclasses.replace(odd(""), shape=dataclasses.replace(shape, context=5)))
