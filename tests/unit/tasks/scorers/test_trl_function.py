"""A researcher's function: called as TRL calls it, and one sentence for each way in which it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.row_scorer import RowScorer
from p2prl.tasks.scorers.answer_scorer import Composite, Weighted
from p2prl.tasks.scorers.build import build_scorer
from p2prl.tasks.scorers.trl_function import load_function

FILE = """
import dataclasses

@dataclasses.dataclass
class Point:
    x: int

def trl_shape(prompts, completions, **columns):
    trl_shape.seen = (prompts, completions, columns)
    return [float(len(c)) for c in completions]

def answer_shape(completions, answer, **kwargs):
    return [1.0 if a in c else 0.0 for c, a in zip(completions, answer)]

def chat(completions, **kwargs):
    return [len(c[0]["content"]) + (c[0]["role"] == "assistant") for c in completions]

def narrow(completions):
    return [True for _ in completions]

def optional(completions, completion_ids=None, level=7):
    return [float(level if not isinstance(level, list) else level[0])]

def excluded(completions, **kwargs): return [None]
def scalar(completions, **kwargs): return 1.0
def two(completions, **kwargs): return [1.0, 2.0]
def words(completions, **kwargs): return ["high"]
def raises(completions, **kwargs): raise KeyError("gone")
def infinite(completions, **kwargs): return [float("inf")]
def huge(completions, **kwargs): return [1000]

async def waits(completions, **kwargs): return [1.0]
def wants_ids(completions, completion_ids, **kwargs): return [1.0]
def wants_state(completions, *, trainer_state): return [1.0]
def by_position(completions, /, **kwargs): return [1.0]
def no_completions(prompts): return [1.0]
def wants_column(completions, solution): return [1.0]

constant = 5

class Callable:
    async def __call__(self, completions): return [1.0]
instance = Callable()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rewards.py"
    path.write_text(FILE)
    return path


def built(path: Path, name: str) -> RowScorer:
    return build_scorer(f'{{"rewards":[{{"function":"{name}","scorer":"function","weight":1.0}}]}}', path)


ROW = {"prompt": "2+2?", "rendered": "<user>2+2?", "answer": "4", "level": 3}


def test_text_rows(path: Path) -> None:
    assert built(path, "trl_shape").score(ROW, "four", True) == 4.0
    assert built(path, "answer_shape").score(ROW, "it is 4", False) == 1.0
    assert built(path, "narrow").score(ROW, "", True) == 1.0
    assert built(path, "optional").score(ROW, "", True) == 3.0
    assert built(path, "optional").score({"prompt": "x"}, "", True) == 7.0


def test_arguments_are_trls(path: Path) -> None:
    arguments = load_function(path, "trl_shape").arguments(ROW, "four", True)
    assert arguments == {
        "prompts": ["2+2?"],
        "completions": ["four"],
        "answer": ["4"],
        "level": [3],
        "truncated": [False],
    }
    chat = [{"role": "user", "content": "2+2?"}]
    arguments = load_function(path, "trl_shape").arguments({**ROW, "prompt": chat}, "four", True)
    assert arguments["prompts"] == [chat]
    assert arguments["completions"] == [[{"role": "assistant", "content": "four"}]]


def test_chat_rows(path: Path) -> None:
    chat = {**ROW, "prompt": [{"role": "user", "content": "2+2?"}]}
    assert built(path, "chat").score(chat, "four", True) == 5.0


def test_none_is_left_out_of_the_sum(path: Path) -> None:
    assert built(path, "excluded").score(ROW, "", True) is None
    both = Composite(
        terms=tuple(
            Weighted(name=name, weight=2.0, scorer=load_function(path, name)) for name in ("narrow", "excluded")
        )
    )
    assert both.score(ROW, "", True) == 2.0


def test_a_function_learns_that_a_completion_was_cut_off(path: Path) -> None:
    function = load_function(path, "trl_shape")
    for finished in (True, False):
        function.score(ROW, "four", finished)
        assert function.arguments(ROW, "four", finished).get("truncated") == [not finished]
    assert function.arguments({**ROW, "truncated": "mine"}, "four", False)["truncated"] == ["mine"]
    assert "truncated" not in load_function(path, "narrow").arguments(ROW, "four", False)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("scalar", TypeError, "scalar returned float, not a list"),
        ("two", TypeError, "two returned 2 values for 1 completion"),
        ("words", TypeError, r"words returned \['high'\], not a list of one number"),
        ("raises", KeyError, "gone"),
        ("infinite", ValueError, "from -100 to 100"),
        ("huge", ValueError, "from -100 to 100"),
        ("wants_column", TypeError, "needs 'solution', but the data set has only the columns: answer, level"),
    ],
)
def test_calls_that_fail(path: Path, name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        built(path, name).score(ROW, "", True)


@pytest.mark.parametrize(
    ("name", "message", "remedy"),
    [
        ("waits", "is an async function", "with `def`"),
        ("instance", "is an async function", "with `def`"),
        ("wants_ids", "needs 'completion_ids'", "Remove"),
        ("wants_state", "needs 'trainer_state'", "Remove"),
        ("by_position", "by position only", "Remove"),
        ("no_completions", "does not take completions", "def f(completions, answer, **kwargs)"),
        ("constant", "has no function 'constant'", "trl_shape"),
        ("absent", "has no function 'absent'", "trl_shape"),
    ],
)
def test_functions_that_cannot_be_called(path: Path, name: str, message: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(path, name)
    assert message in str(caught.value)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import absent_module", "ModuleNotFoundError"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_files_that_cannot_be_loaded(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        built(path, "f")
