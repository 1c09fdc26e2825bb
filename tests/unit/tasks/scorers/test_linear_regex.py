"""Patterns and schemas through their libraries: what is accepted, what is refused at once, hostile texts."""

from __future__ import annotations

import json

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.row_scorer import RowScorer
from p2prl.tasks.scorers.build import build_scorer
from p2prl.tasks.scorers.spec import Reward, Scoring, scoring_spec
from tests.unit.tasks.scorers.linear_time import grows_linearly

pytest.importorskip("re2", reason="needs the extra scorers")
pytest.importorskip("jsonschema_rs", reason="needs the extra scorers")
pytestmark = pytest.mark.extra


def scorer(name: str, **options: str | float | bool) -> RowScorer:
    return build_scorer(scoring_spec(Scoring(rewards=(Reward(scorer=name, options=options),))), None)


@pytest.mark.parametrize(
    ("pattern", "text", "value"),
    [
        ("Answer: ([^\n]+)", "Answer: 42\nAnswer: 7", 1),
        (".*Answer: ([^\n]+)", "Answer: 42\nAnswer: 7", 0),
        (".*Answer: ([^\n]+)", "Answer: 7\nAnswer: 42.0", 1),
        ("[0-9]+", "it is 42, not 7", 1),
        ("(?i)ANSWER ([a-z]+)?", "answer 42", 0),
        ("x", "42", 0),
        ("^42$", "42\n7", 0),
        ("^42$", "42", 1),
    ],
)
def test_regex(pattern: str, text: str, value: int) -> None:
    assert scorer("regex", pattern=pattern).score({"answer": "#### 42"}, text, True) == value


@pytest.mark.parametrize(
    ("text", "value"), [("<think>a\nb</think> 4", 1), (" <think>a</think>4", 0), ("4", 0), ("<think>a</think>", 0)]
)
def test_format(text: str, value: int) -> None:
    built = scorer("format", pattern="^<think>.*</think>[^<]+$")
    assert built.score({}, text, True) == value
    assert built.score({}, text, False) == 0


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)",
        r"(a)\1",
        "(?<!a)b",
        "(",
        "a)(b",
        "[",
        "a{1,1001}",
        "(a{1,100}){1,100}",
        "((a{100}){100}){100}",
        "\ud800",
    ],
)
def test_refused_patterns(pattern: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scorer("format", pattern=pattern)
    assert caught.value.remedy


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*a){20}$", "a*a*a*a*b", "^(([a-z])+.)+[A-Z]$"])
def test_patterns_that_backtrack_elsewhere(pattern: str) -> None:
    built = scorer("format", pattern=pattern)
    assert grows_linearly(lambda text: built.score({}, text, True), lambda size: "a" * size + "!", small=7_000)


def test_text_that_is_no_utf8() -> None:
    assert scorer("regex", pattern="^.*$").score({"answer": "x"}, "\ud800", True) == 0.0


SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"name": "Ada", "age": 36}', 1),
        ('```\n{"name": "Ada", "age": 36}\n```', 1),
        ('{"name": "ada", "age": 36}', 0),
        ('{"name": "Ada", "age": -1}', 0),
        ('{"name": "Ada", "age": 1, "x": 0}', 0),
        ('{"name": "Ada"}', 0),
        ("Ada", 0),
        ("[" * 60 + "]" * 60, 0),
        ('{"name": "Ada", "age": 1' + "0" * 4_000 + "}", 1),
    ],
)
def test_schema(text: str, value: int) -> None:
    assert scorer("json", schema=json.dumps(SCHEMA)).score({}, text, True) == value


@pytest.mark.parametrize(
    "schema",
    ["{", "[]", '{"type":"objet"}', '{"$ref":"https://example.org/x.json"}', '{"$ref":"file:///etc/passwd"}',
     r'{"pattern":"(?=a)"}', r'{"pattern":"(a)\\1"}'],
)  # fmt: skip
def test_refused_schemas(schema: str) -> None:
    with pytest.raises(ConfigError, match="schema is refused"):
        scorer("json", schema=schema)
