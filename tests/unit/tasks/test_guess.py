"""guess: replies and scores against a second implementation of `docs/tasks.md` §9, and its demonstrations."""

from __future__ import annotations

import hashlib
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError, LocalProtocolError
from p2prl.tasks.guess import FAULTS, GUESS, OPENING, SYMBOLS, Guess, GuessFaults, demonstrated_turns
from p2prl.tasks.task_registry import scorer_by_task, task_by_name
from p2prl.tasks.task_spec import TurnsDemonstration
from p2prl_lab.bench.training.environments import environment_by_name

TEXT = (Path(__file__).parents[3] / "docs/tasks.md").read_text()
GAME = Guess()
PERFECT = GuessFaults(creep=0.0, forget=0.0, slip=0.0)
SEEDS = st.integers(0, (1 << 63) - 1)


def number(seed: int) -> int:
    """Sections 1 and 9."""
    domain = b"p2prl/task/guess/v1"
    block = hashlib.sha256(bytes([len(domain)]) + domain + seed.to_bytes(8, "little") + bytes(8)).digest()
    return int.from_bytes(block[:4], "little") % 100


def reply(seed: int, turns: list[str]) -> str | None:
    said = re.fullmatch(r" *([0-9][0-9]) *", turns[-1])
    if said is None or len(turns[-1]) > 4 or int(said[1]) == number(seed) or len(turns) > 6:
        return None
    return "-" if int(said[1]) > number(seed) else "+"


def wins(seed: int, turns: list[str], finished: bool) -> float:
    said = re.fullmatch(r" {0,2}([0-9][0-9]) {0,2}", turns[-1]) if turns and finished else None
    return float(said is not None and len(turns[-1]) <= 4 and int(said[1]) == number(seed))


TURNS = st.lists(
    st.from_regex(r"\A ?[0-9]{1,3} {0,3}\Z") | st.text("0123456789+- ٣²?", max_size=5), min_size=1, max_size=8
)


@given(SEEDS, TURNS, st.booleans())
def test_it_plays_as_the_text_says(seed: int, turns: list[str], finished: bool) -> None:
    turns[-1] = random.Random(seed).choice([turns[-1], f"{number(seed):02d}", f" {number(seed):02d}"])
    assert GAME.reply(seed, turns) == reply(seed, turns)
    assert GAME.score(seed, turns, finished).reward == wins(seed, turns, finished)
    assert GAME.opening(seed) == "00-99?"


def test_examples_of_the_text() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ((?:`[^`]*` ?)+)\| ([01]) \|$", TEXT, flags=re.M)
    assert len(rows) >= 3
    for seed, secret, game, score in rows:
        said = re.findall(r"`([^`]*)`", game)
        turns, replies = said[::2], said[1::2]
        assert number(int(seed)) == int(secret)
        assert [reply(int(seed), turns[:n]) for n in range(1, len(turns) + 1)] == [*replies, None]
        assert wins(int(seed), turns, True) == float(score)


def test_an_unfinished_or_empty_episode_scores_nothing() -> None:
    right = f"{number(5):02d}"
    assert GAME.score(5, [right], True).reward == 1.0
    assert GAME.score(5, [right], False).reward == GAME.score(5, [], True).reward == 0.0
    with pytest.raises(LocalProtocolError):
        GAME.opening(-1)


def test_bisection_always_finds_the_number() -> None:
    for seed in range(300):
        turns = demonstrated_turns(seed, PERFECT)
        assert len(turns) <= 7
        assert GAME.score(seed, turns, True).reward == 1.0


def test_demonstrations_are_games_with_faults() -> None:
    won = 0.0
    for seed in range(2000):
        turns = demonstrated_turns(seed)
        assert all(GAME.reply(seed, turns[:n]) is not None for n in range(1, len(turns)))
        assert GAME.reply(seed, turns) is None
        won += GAME.score(seed, turns, True).reward
    assert 0.35 < won / 2000 < 0.6


@pytest.mark.parametrize("field", ["creep", "forget"])
def test_each_fault_loses_games(field: str) -> None:
    only = GuessFaults(**{"creep": 0.0, "forget": 0.0, "slip": 0.0, field: 1.0})
    lost = sum(GAME.score(seed, demonstrated_turns(seed, only), True).reward == 0.0 for seed in range(500))
    assert 150 < lost < 400


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_illegal_rates_are_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="slip"):
        GuessFaults(creep=0.0, forget=0.0, slip=rate)


def test_it_is_complete() -> None:
    spec = task_by_name("guess")
    assert spec is GUESS
    assert spec.environment is not None
    assert task_by_name("chain4").environment is None
    assert spec.small_model is not None
    assert set(OPENING) <= set(spec.small_model.symbols) == set(SYMBOLS)
    assert isinstance(spec.demonstration, TurnsDemonstration)
    longest = 7 * 3 + 6  # seven guesses with their stop tokens, six answers
    assert longest <= spec.max_new_tokens <= spec.small_model.context - len(OPENING) - 1
    assert FAULTS != PERFECT


def test_what_needs_one_turn_refuses_it() -> None:
    with pytest.raises(ConfigError, match="several turns"):
        environment_by_name("guess")
    with pytest.raises(ConfigError, match="no process scorer"):
        scorer_by_task("guess")
