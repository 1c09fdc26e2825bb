"""Options about data sets: names, weights, which data set an option is about, and scorer files that are never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from p2prl.config.data_options import DataOptions, data_plans, task_shares
from p2prl.errors import ConfigError
from p2prl.protocol.limits import MAX_SCORER_CODE_BYTES
from p2prl.tasks.data.data_plan import DataPlan


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets `a.jsonl` and `b.jsonl`, a held-out one, and a scorer."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl", "held.jsonl", "my data.jsonl", "a=b.jsonl", "c.jsonl@2"):
        Path(name).write_text(json.dumps({"prompt": name, "answer": "1", "gold": "2"}) + "\n")
    Path("own.py").write_text("def score(prompts, completions, **columns):\n    return [1.0]\n")


def plans(*data: str, scorers: tuple[str, ...] = ("exact",), **options: Any) -> tuple[DataPlan, ...]:
    return data_plans(DataOptions(data=data, scorers=scorers, **options))


@pytest.mark.parametrize(
    ("text", "task", "path", "weight"),
    [
        ("a.jsonl", "a", "a.jsonl", 1.0),
        ("a.jsonl@2.5", "a", "a.jsonl", 2.5),
        ("math=a.jsonl@1e-3", "math", "a.jsonl", 0.001),
        ("my data.jsonl", "my-data", "my data.jsonl", 1.0),
        ("a=b.jsonl", "a-b", "a=b.jsonl", 1.0),
        ("c.jsonl@2", "c", "c.jsonl@2", 1.0),
        ("c=c.jsonl@2@3", "c", "c.jsonl@2", 3.0),
        ("a.jsonl@1e-6", "a", "a.jsonl", 1e-6),
        ("a.jsonl@1e6", "a", "a.jsonl", 1e6),
    ],
)
def test_a_data_set_has_a_name_a_file_and_a_weight(text: str, task: str, path: str, weight: float) -> None:
    (plan,) = plans(text)
    assert (plan.task, plan.path, plan.weight) == (task, Path(path), weight)


def test_options_are_about_the_data_set_they_name() -> None:
    first, second = plans(
        "math=a.jsonl@2",
        "code=b.jsonl",
        scorers=("exact", "code=choice", "code=0.5*exact"),
        held_out=("code=held.jsonl",),
        answer_columns=("math=gold", "answer"),
        prompt_columns=("prompt",),
        eval_split=0.1,
    )
    assert (first.task, second.task) == ("code", "math")
    assert json.loads(second.scoring)["rewards"] == [{"scorer": "exact", "weight": 1.0}]
    assert [each["scorer"] for each in json.loads(first.scoring)["rewards"]] == ["choice", "exact"]
    assert (first.held_out, first.eval_split) == (Path("held.jsonl"), 0.0)
    assert (second.held_out, second.eval_split) == (None, 0.1)
    assert (first.answer_column, second.answer_column) == ("answer", "gold")
    assert first.needed_columns == {"answer"}


def test_a_scorer_file_travels_unchanged_and_unread() -> None:
    code = b'def score(**_):\n    return [0.0]\nopen("ran", "w").close()\n'
    Path("own.py").write_bytes(code)
    (plan,) = plans("a.jsonl", scorers=("own.py:score",))
    assert plan.code == code
    assert plan.needed_columns == frozenset()
    assert "own.py" not in plan.scoring
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("data", "options", "said", "remedy"),
    [
        (("none.jsonl",), {}, "no file none.jsonl", "Check the path"),
        (("a.jsonl", "a.jsonl"), {}, "two data sets have the name 'a'", "NAME=FILE"),
        (("a.jsonl@0",), {}, "the weight must be from 1e-06", "@2.5"),
        (("a.jsonl@1e9",), {}, "the weight must be from 1e-06", "@2.5"),
        (("a.jsonl@-1",), {}, "a.jsonl@-1': the weight must be from 1e-06", "a.jsonl@2.5"),
        (("a.jsonl",), {"scorers": ()}, "'a' has no scorer", "--scorer"),
        (("a.jsonl",), {"scorers": ("b=exact",)}, "--scorer 'b=exact': no data set has the name 'b'", "a=exact"),
        (("a.jsonl",), {"held_out": ("b=held.jsonl",)}, "no data set has the name 'b'", "--eval a=held.jsonl"),
        (("a.jsonl",), {"scorers": ("exakt",)}, "exakt", ""),
        (("a.jsonl",), {"scorers": ("own.py:scor",)}, "own.py defines no function 'scor'", "own.py:score"),
        (("a.jsonl",), {"scorers": ("other.py:score",)}, "no file other.py", "--scorer"),
        (("a.jsonl",), {"answer_columns": ("golden",)}, "no column 'golden'", "--answer-column gold"),
        (("a.jsonl",), {"held_out": ("none.jsonl",)}, "no file none.jsonl", "Check"),
        (("a.jsonl",), {"held_out": ("a=",)}, "--eval has no value", "--eval"),
        (("a.jsonl", "b.jsonl"), {"held_out": ("held.jsonl",)}, "does not say whose evaluation", "--eval a=held.jsonl"),
        (("~nosuchuser/x.jsonl",), {}, "--data '~nosuchuser/x.jsonl': ", "Check the path"),
        (("a=~nosuchuser/x.jsonl@2",), {}, "--data '~nosuchuser/x.jsonl': ", "Check the path"),
        (("x" * 300 + ".jsonl",), {}, "File name too long", "Check the path"),
        (("a.jsonl",), {"held_out": ("~nosuchuser/x.jsonl",)}, "--eval '~nosuchuser/x.jsonl': ", "Check the path"),
        (("a.jsonl",), {"held_out": ("x" * 300,)}, "--eval 'xxx", "Check the path"),
        (("a.jsonl",), {"scorers": ("~nosuchuser/own.py:score",)}, "--scorer '~nosuchuser/own.py': ", "Check"),
        (("a.jsonl",), {"eval_split": 1.0}, "--eval-split is 1.0", "0.02"),
        (("a.jsonl",), {"eval_split": -0.1}, "--eval-split is -0.1", "0.02"),
        (("a.jsonl",), {"eval_split": float("nan")}, "--eval-split is nan", "0.02"),
        ((), {}, "--scorer is about a data set", "--data"),
        ((), {"scorers": (), "eval_split": 0.1}, "--eval-split is about a data set", "--data"),
        ((), {"scorers": (), "drop_long": True}, "--drop-long is about a data set", "--data"),
        ((), {"scorers": (), "drop_conflicts": True}, "--drop-conflicts is about a data set", "--data"),
    ],
)
def test_faults_name_the_option_and_the_remedy(
    data: tuple[str, ...], options: dict[str, Any], said: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plans(*data, **options)
    assert said in str(caught.value)
    assert remedy in caught.value.remedy
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (b"def score(:\n", "own.py, line 1"),
        (b"def other(): pass\n", "defines no function 'score'"),
        (b"x = '\0'\n", "own.py: source code"),
        (b"def other():\n    def score(): pass\n", "defines no function 'score'"),
        (b"score = 1\n#" + b"x" * (MAX_SCORER_CODE_BYTES - 10), "outside 1..1,048,576"),
    ],
)
def test_files_that_are_no_scorer_are_refused(code: bytes, said: str) -> None:
    Path("own.py").write_bytes(code)
    with pytest.raises(ConfigError, match=said):
        plans("a.jsonl", scorers=("own.py:score",))


def test_the_longest_scorer_file_is_taken() -> None:
    code = b"score = 1\n#" + b"x" * (MAX_SCORER_CODE_BYTES - 11)
    Path("own.py").write_bytes(code)
    assert plans("a.jsonl", scorers=("own.py:score",))[0].code == code


def test_a_scorer_may_be_assigned_or_imported() -> None:
    Path("own.py").write_text(
        "from math import sqrt as root\nscore = root\n"
        "try:\n    import x\nexcept ImportError:\n    def mine(**_): return [0.0]\n"
    )
    for name in ("root", "score", "mine"):
        assert plans("a.jsonl", scorers=(f"own.py:{name}",))[0].code


def test_tasks_of_a_mix_have_weights() -> None:
    assert [(share.task, share.weight) for share in task_shares(["chain4", "walk12@0.5"])] == [
        ("chain4", 1.0),
        ("walk12", 0.5),
    ]
    with pytest.raises(ConfigError, match="names 'chain4' twice"):
        task_shares(["chain4", "chain4@2"])


def test_a_generated_source_may_be_longer_than_any_file_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2prl.config.data_options._read_first_rows", lambda plan: None)  # the library is an extra
    source = "reasoning-gym:" + ",".join(f"dataset_{number}" for number in range(40))
    assert len(source) > 300
    for text in (f"{source}@2", f"mix={source}@2"):
        (plan,) = plans(text, held_out=(source,))
        assert (str(plan.path), plan.weight, str(plan.held_out)) == (source, 2.0, source)


def test_a_named_file_may_have_a_name_as_long_as_any() -> None:
    longest = "y" * 255
    Path(longest).write_text(Path("a.jsonl").read_text())
    for text, weight in ((f"a={longest}", 1.0), (f"a={longest}@2", 2.0)):
        (plan,) = plans(text)
        assert (plan.task, plan.path, plan.weight) == ("a", Path(longest), weight)


def test_prompts_are_made_of_columns_by_data_set() -> None:
    first, second = plans("a.jsonl", "b.jsonl", prompts=("a={prompt} = {answer}", "{gold}"))
    assert first.prompt_template is not None
    assert second.prompt_template is not None
    assert first.prompt_template.text == "{prompt} = {answer}"
    assert second.prompt_template.text == "{gold}"
    with pytest.raises(ConfigError, match="exclude each other"):
        plans("a.jsonl", prompts=("{gold}",), prompt_columns=("prompt",))
    with pytest.raises(ConfigError, match="no column 'silver'"):
        plans("a.jsonl", prompts=("{silver}",))


def test_shards_are_one_data_set_with_a_name_and_a_weight() -> None:
    (plan,) = plans("[ab].jsonl@2")
    assert (plan.task, plan.path, plan.weight) == ("ab", Path("[ab].jsonl"), 2.0)
