"""Scoring spec: one text per scoring, nothing else accepted, and the penalty's formula."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.tasks.scorers.build import length_penalty, needs_code, runs_third_party_code
from p2prl.tasks.scorers.length_penalty import LengthPenalty
from p2prl.tasks.scorers.spec import Reward, Scoring, parse_spec, scoring_spec
from p2prl.tasks.scorers.spec_options import SCORER_OPTIONS

PLAIN = '{"rewards":[{"scorer":"number","weight":1.0}]}'

WEIGHTS = st.floats(-100, 100, allow_nan=False).filter(bool)


@st.composite
def rewards(draw: st.DrawFn) -> Reward:
    name = draw(st.sampled_from([*SCORER_OPTIONS]))
    options: dict[str, str | float | bool] = {}
    for key, option in SCORER_OPTIONS[name].items():
        if not (option.required or draw(st.booleans())):
            continue
        if isinstance(option.default, bool):
            options[key] = draw(st.booleans())
        elif isinstance(option.default, float):
            options[key] = draw(st.floats(0, 1e9))
        elif option.choices:
            options[key] = draw(st.sampled_from(option.choices))
        else:
            options[key] = "accuracy" if option.identifier else draw(st.text(min_size=1, max_size=9))
    return Reward(scorer=name, weight=draw(WEIGHTS), options=options)


@given(st.lists(rewards(), min_size=1, max_size=4), st.integers(2, 32_768), st.booleans())
def test_a_scoring_has_one_printable_text(scorers: list[Reward], limit: int, penalized: bool) -> None:
    penalty = LengthPenalty(max_tokens=limit, cache_tokens=limit // 2, weight=0.5) if penalized else None
    scoring = Scoring(rewards=tuple(scorers), length_penalty=penalty)
    text = scoring_spec(scoring)
    assert text.isprintable()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    read = parse_spec(text)
    assert scoring_spec(read) == text
    assert read.length_penalty == penalty
    for before, after in zip(scorers, read.rewards, strict=True):
        assert (after.scorer, after.weight) == (before.scorer, before.weight)
        assert all(after.option(name) == before.option(name) for name in SCORER_OPTIONS[before.scorer])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"rewards":[]}',
        '{"rewards":{}}',
        '{"rewards":[{"scorer":"number"}]}',
        '{"rewards":[{"scorer":"number","weight":1}]}',
        '{"rewards":[{"scorer":"number","weight":0.0}]}',
        '{"rewards":[{"scorer":"number","weight":100.5}]}',
        '{"rewards":[{"scorer":"number","weight":1e999}]}',
        '{"rewards":[{"scorer":"number","weight":NaN}]}',
        '{"rewards":[{"scorer":"numbr","weight":1.0}]}',
        '{"rewards":[{"scorer":"number","unknown":1.0,"weight":1.0}]}',
        '{"rewards":[{"scorer":"number","tolerance":0.0,"weight":1.0}]}',
        '{"rewards":[{"scorer":"number","tolerance":-1.0,"weight":1.0}]}',
        '{"rewards":[{"scorer":"number","tolerance":true,"weight":1.0}]}',
        '{"rewards":[{"scorer":"number","truncated":1,"weight":1.0}]}',
        '{"rewards":[{"column":7,"scorer":"number","weight":1.0}]}',
        '{"rewards":[{"scorer":"format","weight":1.0}]}',
        '{"rewards":[{"function":"a b","scorer":"function","weight":1.0}]}',
        '{"rewards":[{"scorer":["number"],"weight":1.0}]}',
        '{"rewards":["number"]}',
        '{"rewards":[{"scorer":"number","weight":1.0}],"x":1}',
        '{"length_penalty":{"cache_tokens":1,"max_tokens":8},"rewards":[{"scorer":"number","weight":1.0}]}',
        '{"length_penalty":{"cache_tokens":1,"max_tokens":8.0,"weight":1.0},"rewards":[{"scorer":"number","weight":1.0}]}',
        '{"length_penalty":{"cache_tokens":9,"max_tokens":8,"weight":1.0},"rewards":[{"scorer":"number","weight":1.0}]}',
        '{"length_penalty":null,"rewards":[{"scorer":"number","weight":1.0}]}',
        ' {"rewards":[{"scorer":"number","weight":1.0}]}',
        '{"rewards":[{"weight":1.0,"scorer":"number"}]}',
        '{"rewards":[{"scorer":"number","weight":1.00}]}',
        '{"rewards":[{"scorer":"number","scorer":"number","weight":1.0}]}',
        "[" * 8_000,
        '{"rewards":[' + '{"scorer":"number","weight":1.0},' * 16 + '{"scorer":"number","weight":1.0}]}',
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_spec(text)


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_scoring_or_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_spec(text)


@given(st.integers(0, len(PLAIN) - 1), st.characters(codec="ascii"))
def test_a_changed_character_is_refused_or_another_scoring(place: int, character: str) -> None:
    changed = PLAIN[:place] + character + PLAIN[place + 1 :]
    try:
        assert scoring_spec(parse_spec(changed)) == changed
    except RemoteProtocolError:
        assert changed != PLAIN


def test_sixteen_scorers_and_the_longest_text() -> None:
    scoring = Scoring(rewards=(Reward(scorer="number"),) * 16)
    assert parse_spec(scoring_spec(scoring)) == scoring
    with pytest.raises(ConfigError, match="number of scorers"):
        Scoring(rewards=(Reward(scorer="number"),) * 17)
    long = Scoring(rewards=(Reward(scorer="format", options={"pattern": "a" * 1_000}),) * 8)
    with pytest.raises(ConfigError, match=str(limits.MAX_SCORING_CHARS)):
        scoring_spec(long)


@pytest.mark.parametrize("weight", [100.0, -100.0])
def test_largest_weights(weight: float) -> None:
    Reward(scorer="number", weight=weight)
    with pytest.raises(ConfigError, match="weight of number"):
        Reward(scorer="number", weight=weight * 1.001)


PENALTY = LengthPenalty(max_tokens=200, cache_tokens=100)


@pytest.mark.parametrize(
    "legal",
    [
        {"max_tokens": 2, "cache_tokens": 1},
        {"max_tokens": limits.MAX_COMPLETION_TOKENS},
        {"cache_tokens": 1},
        {"cache_tokens": 200},
        {"weight": 1e-300},
        {"weight": 100.0},
    ],
)
def test_length_penalties_at_the_limits_pass(legal: dict[str, float]) -> None:
    scoring = Scoring(rewards=(Reward(scorer="number"),), length_penalty=replace(PENALTY, **legal))  # type: ignore[arg-type]
    assert parse_spec(scoring_spec(scoring)) == scoring


@pytest.mark.parametrize(
    "illegal",
    [
        {"max_tokens": 1, "cache_tokens": 1},
        {"max_tokens": limits.MAX_COMPLETION_TOKENS + 1},
        {"cache_tokens": 0},
        {"cache_tokens": 201},
        {"weight": 0.0},
        {"weight": 100.1},
    ],
)
def test_impossible_length_penalties_are_refused(illegal: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="length penalty's"):
        replace(PENALTY, **illegal)  # type: ignore[arg-type]


@given(st.integers(2, 4_096), st.integers(1, 4_096), st.integers(0, 5_000))
def test_length_penalty_is_daposs(limit: int, cache: int, tokens: int) -> None:
    cache = min(limit, cache)
    if tokens <= limit - cache:  # equation 13 of arXiv 2503.14476
        expected = 0.0
    elif tokens <= limit:
        expected = ((limit - cache) - tokens) / cache
    else:
        expected = -1.0
    penalty = LengthPenalty(max_tokens=limit, cache_tokens=cache)
    assert penalty.of(tokens) == pytest.approx(expected)
    assert LengthPenalty(max_tokens=limit, cache_tokens=cache, weight=0.25).of(tokens) == pytest.approx(expected / 4)


def test_length_penalty_of_a_text() -> None:
    penalized = (
        PLAIN[:-1].replace("{", '{"length_penalty":{"cache_tokens":100,"max_tokens":200,"weight":2.0},', 1) + "}"
    )
    assert [length_penalty(penalized, tokens) for tokens in (0, 100, 150, 200, 900)] == [0.0, 0.0, -1.0, -2.0, -2.0]
    assert length_penalty(PLAIN, 900) == 0.0


@pytest.mark.parametrize("name", [*SCORER_OPTIONS])
def test_scorers_that_need_a_child_of_their_own(name: str) -> None:
    options = {key: "x" for key, option in SCORER_OPTIONS[name].items() if option.required}
    text = scoring_spec(Scoring(rewards=(Reward(scorer="number"), Reward(scorer=name, options=options))))
    assert runs_third_party_code(text) == (name in ("math-verify", "reasoning-gym", "verifiers", "function"))
    assert needs_code(text) == (name == "function")
