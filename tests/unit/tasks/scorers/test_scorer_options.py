"""Texts of --scorer and --length-penalty: what they mean, and the sentences for those that mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.scorers.length_penalty import LengthPenalty
from p2prl.tasks.scorers.scorer_options import read_length_penalty, read_scorer, scoring_from_options
from p2prl.tasks.scorers.spec import Reward, parse_spec, scoring_spec


def no_file(path: Path) -> str:
    raise AssertionError(f"{path} was read")


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("number", Reward(scorer="number")),
        ("number:tolerance=1e-6", Reward(scorer="number", options={"tolerance": 1e-6})),
        ("2*choice:column=key", Reward(scorer="choice", weight=2.0, options={"column": "key"})),
        (
            "-0.5*contains:ignore_case=yes,where=end",
            Reward(scorer="contains", weight=-0.5, options={"ignore_case": True, "where": "end"}),
        ),
        ("exact:after=</think>", Reward(scorer="exact", options={"after": "</think>"})),
        ("0.1*format:^<think>.*", Reward(scorer="format", weight=0.1, options={"pattern": "^<think>.*"})),
        ("regex:a,b=c:(d)*e", Reward(scorer="regex", options={"pattern": "a,b=c:(d)*e"})),
        (
            "regex:column=x,pattern=a,pattern=b",
            Reward(scorer="regex", options={"column": "x", "pattern": "a,pattern=b"}),
        ),
        ("regex:column=x", Reward(scorer="regex", options={"pattern": "column=x"})),
        ("1e-2*boxed", Reward(scorer="boxed", weight=0.01)),
        ("math-verify:truncated=no", Reward(scorer="math-verify", options={"truncated": False})),
    ],
)  # fmt: skip
def test_texts(text: str, reward: Reward) -> None:
    assert read_scorer(text, read_text=no_file) == (reward, None)


def test_functions_of_one_file() -> None:
    scoring, code = scoring_from_options(["dir/rewards.py:f", "0.5*dir/rewards.py:g", "number"], "0.5*512:128")
    assert code == Path("dir/rewards.py")
    assert [(r.scorer, r.weight, dict(r.options)) for r in scoring.rewards] == [
        ("function", 1.0, {"function": "f"}),
        ("function", 0.5, {"function": "g"}),
        ("number", 1.0, {}),
    ]
    assert scoring.length_penalty == LengthPenalty(max_tokens=512, cache_tokens=128, weight=0.5)
    assert parse_spec(scoring_spec(scoring)) == scoring


def test_schema_file_becomes_canonical_text(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{ "type": "object",\n "required": ["name"] }')
    reward, _ = read_scorer(f"json:schema={path}")
    assert reward.options == {"schema": '{"required":["name"],"type":"object"}'}
    path.write_text("{")
    with pytest.raises(ConfigError, match="is no JSON"):
        read_scorer(f"json:schema={path}")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_scorer(f"json:schema={tmp_path / 'absent'}")


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("numbr", "unknown scorer: 'numbr'", "Did you mean 'number'?"),
        ("accuracy", "unknown scorer", "Choose one of exact"),
        ("function:f", "unknown scorer", ""),
        ("number:tolerence=1", "unknown option of the scorer 'number'", "Did you mean 'tolerance'?"),
        ("number:tolerance=abc", "tolerance is 'abc'", "number"),
        ("number:tolerance=-1", "tolerance is '-1.0'", "0..1e"),
        ("number:tolerance=1,tolerance=2", "given twice", "once"),
        ("number:tolerance", "has no value", "number:tolerance=VALUE"),
        ("exact:ignore_case=maybe", "ignore_case", "yes or no"),
        ("contains:where=middle", "where is 'middle'", "anywhere or start or end"),
        ("regex", "needs pattern", "regex:PATTERN"),
        ("format:", "needs pattern", "format:PATTERN"),
        ("format:" + "a" * 1_001, "pattern is", "1..1000 characters"),
        ("rewards.py", "names no function", "rewards.py:FUNCTION"),
        ("rewards.py:not a name", "function is", "Python function"),
        ("0*number", "weight of number is 0.0", "not 0"),
        ("101*number", "weight of number is 101.0", "100"),
        ("1.2.3*number", "weight '1.2.3'", "0.1*format"),
    ],
)
def test_sentences(text: str, message: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_scorer(text)
    assert message in str(caught.value)
    assert remedy in caught.value.remedy


def test_functions_of_two_files_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 Python files"):
        scoring_from_options(["a.py:f", "b.py:f"])
    with pytest.raises(ConfigError, match="number of scorers"):
        scoring_from_options([])


@pytest.mark.parametrize(
    "text", ["512", "512:", "a:b", "512:128:1", "-512:128", "512:0", "1:1", "128:512", "0*512:128"]
)
def test_unreadable_length_penalties(text: str) -> None:
    with pytest.raises(ConfigError):
        read_length_penalty(text)
