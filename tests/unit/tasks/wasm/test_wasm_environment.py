"""Environments as modules: the same for everybody who asks, in whatever order, and the examples by their own rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("wasmtime", reason="needs the extra agents")

from p2prl.errors import LocalProtocolError
from p2prl.tasks.environment import MAX_MESSAGE_CHARS, next_message
from tests.unit.tasks.wasm.written_modules import environment, example, module

SEEDS = st.integers(0, (1 << 63) - 1)
_64 = (1 << 64) - 1


class Splitmix:
    """The generator of the examples, from its published definition."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def below(self, limit: int) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & _64
        z = ((self.state ^ (self.state >> 30)) * 0xBF58476D1CE4E5B9) & _64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64
        return (z ^ (z >> 31)) % limit


def sticks(seed: int, turns: Sequence[str]) -> tuple[str, list[str | None], bool]:
    """Opening, messages and whether the model has won, by the rules at the head of the file."""
    random = Splitmix(seed)
    left = 9 + random.below(9)
    opening, messages = f"{left}:", list[str | None]()
    for turn in turns:
        if turn not in ("1", "2", "3") or int(turn) > left:
            return opening, [*messages, None], False
        left -= int(turn)
        if left == 0:
            return opening, [*messages, None], True
        taken = 1 + random.below(3)
        if taken >= left:
            return opening, [*messages, None], False
        left -= taken
        messages.append(f"-{taken}={left}:")
    return opening, messages, False


def calculator(seed: int, turns: Sequence[str]) -> tuple[str, list[str | None], bool]:
    """The same of the calculator."""
    random = Splitmix(seed)
    a, b, c = (least + random.below(100 - least) for least in (32, 32, 10))
    opening, messages = f"{a}*{b}+{c}?", list[str | None]()
    for number, turn in enumerate(turns, 1):
        if turn.startswith("#"):
            right = re.fullmatch("#[0-9]{1,9}", turn) is not None and int(turn[1:]) == a * b + c
            return opening, [*messages, None], right
        call = re.fullmatch("([0-9]{1,9})([-+*])([0-9]{1,9})", turn)
        if call is None or number > 4:
            return opening, [*messages, None], False
        x, sign, y = int(call[1]), call[2], int(call[3])
        messages.append(str({"+": x + y, "-": x - y, "*": x * y}[sign]))
    return opening, messages, False


RULES = {"sticks": sticks, "calculator": calculator}
TURNS = {
    "sticks": st.sampled_from(["1", "2", "3", "1", "2", "3", "0", "4", "", "12", "1 ", "é"]),
    "calculator": st.one_of(
        st.from_regex(r"[0-9]{1,10}[-+*][0-9]{1,10}", fullmatch=True).filter(str.isascii),
        st.from_regex(r"[0-9]{1,4}[*+-/][0-9]{1,4}", fullmatch=True).filter(str.isascii),
        st.text("0123456789+-*# ", max_size=12),
    ),
}


@pytest.mark.parametrize("name", sorted(RULES))
def test_examples_follow_their_rules(name: str) -> None:
    tried = example(name)

    @settings(max_examples=150, deadline=None)
    @given(SEEDS, st.lists(TURNS[name], min_size=1, max_size=9))
    def check(seed: int, turns: list[str]) -> None:
        opening, messages, won = RULES[name](seed, turns)
        turns = turns[: len(messages)]
        assert tried.opening(seed) == opening
        assert [tried.reply(seed, turns[: n + 1]) for n in range(len(turns))] == messages
        ended = messages[-1] is None
        assert tried.score(seed, turns, ended).reward == float(won)
        assert tried.score(seed, turns, not ended).reward == 0.0

    check()


def test_the_right_answers_are_rewarded() -> None:
    tried = example("calculator")
    for seed in range(50):
        product, last = tried.opening(seed).removesuffix("?").split("+")
        first = tried.reply(seed, (product,))
        total = tried.reply(seed, (product, f"{first}+{last}"))
        turns = (product, f"{first}+{last}", f"#{total}")
        assert tried.reply(seed, turns) is None
        assert tried.score(seed, turns, True).reward == 1.0
        assert tried.score(seed, (*turns[:2], f"#{int(total or 0) + 1}"), True).reward == 0.0


STATEFUL = module(
    # Hashes all turns into a global, and says its lowest digits.
    more="(global $h (mut i64) (i64.const 0))",
    reset="(global.set $h (local.get $seed)) (i64.const 5)",
    step="""(local $n i32)
    (block $done (loop $more
      (br_if $done (i32.ge_u (local.get $n) (local.get $size)))
      (global.set $h (i64.add (i64.mul (global.get $h) (i64.const 31))
        (i64.load8_u (i32.add (local.get $turn) (local.get $n)))))
      (local.set $n (i32.add (local.get $n) (i32.const 1))) (br $more)))
    (if (i64.eqz (i64.rem_u (global.get $h) (i64.const 7))) (then (return (i64.const 0))))
    (i32.store8 (i32.const 0) (i32.add (i32.const 97) (i32.wrap_i64 (i64.rem_u (global.get $h) (i64.const 26)))))
    (i64.const 1)""",
    reward="(f64.div (f64.convert_i64_u (i64.rem_u (global.get $h) (i64.const 1000))) (f64.const 999))",
)


def hashed(seed: int, turns: Sequence[str]) -> tuple[list[str | None], float]:
    """What that module says and gives."""
    state, said = seed, list[str | None]()
    for turn in turns:
        for byte in turn.encode():
            state = (state * 31 + byte) & _64
        if state % 7 == 0:
            return [*said, None], state % 1000 / 999
        said.append(chr(97 + state % 26))
    return said, state % 1000 / 999


EPISODES = st.lists(st.tuples(st.integers(0, 3), st.lists(st.text(max_size=4), min_size=1, max_size=6)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(EPISODES)
def test_everybody_computes_the_same_in_any_order(asked: list[tuple[int, list[str]]]) -> None:
    """A volunteer asks many episodes in turn, of which some are evicted; a validator asks each from a fresh program."""
    volunteer = environment(STATEFUL)
    for seed, turns in asked:
        said, reward = hashed(seed, turns)
        turns = turns[: len(said)]
        finished = said[-1] is None
        assert volunteer.reply(seed, turns) == said[-1]
        assert volunteer.reply(seed, turns[:1]) == said[0]
        if finished:
            assert volunteer.score(seed, turns, True).reward == reward
    validator = environment(STATEFUL)
    for seed, turns in asked[:5]:
        assert validator.reply(seed, turns[: len(hashed(seed, turns)[0])]) == hashed(seed, turns)[0][-1]


def test_threads_do_not_meet_in_an_instance() -> None:
    shared = environment(STATEFUL)

    def ask(number: int) -> list[str | None]:
        return [shared.reply(number % 3, ["a", "bc", "d"][: n % 3 + 1]) for n in range(40)]

    expected = {seed: [(hashed(seed, ["a", "bc", "d"])[0] + [None] * 3)[n % 3] for n in range(40)] for seed in range(3)}
    with ThreadPoolExecutor(8) as threads:
        for number, told in enumerate(threads.map(ask, range(24))):
            assert told == expected[number % 3]


def test_messages_are_cut_off_like_any_environments() -> None:
    fill = "(memory.fill (i32.const 0) (i32.const 120) (i32.const 20000)) (i64.const 20000)"
    assert next_message(environment(module(step=fill)), 0, ["a"]) == "x" * MAX_MESSAGE_CHARS


def test_seeds_have_63_bits() -> None:
    for seed in (-1, 1 << 63):
        with pytest.raises(LocalProtocolError):
            example("sticks").opening(seed)
