"""The mix of the preset `reasoning`: three datasets of reasoning-gym, and faulty demonstrations of their rows.

The datasets are small versions that a model of a few million parameters can learn. The library makes the rows and
scores the answers (`p2prl/tasks/scorers/reasoning_gym_rows.py`); the worked steps of the demonstrations are made here,
from the question alone. basic_arithmetic has no products here, because without brackets it answers `3 + 2 * 3` with 15.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.word_problems.templates import apply

_TERMS = "min_terms=3&max_terms=3&min_digits=1&max_digits=1"
_DATASETS = (
    f"chain_sum?{_TERMS}",
    f'basic_arithmetic?{_TERMS}&allow_parentheses=false&allow_negation=false&operators=["%2B","-"]',
    "leg_counting?min_animals=2&max_animals=2&min_instances=1&max_instances=6",
)

_DOMAIN = b"p2prl/reasoning-demonstration/v1"
_PRACTICE_DOMAIN = b"p2prl/reasoning-practice/v1"
_CHOICE_DOMAIN = b"p2prl/reasoning-choice/v1"

HASTY = 0.3
"""Share of the demonstrations that give the result of the first step as the answer."""

WRONG_RULE = 0.62
"""Share of the demonstrations with the wrong rule of their dataset: `-` worked as `+`, or four legs for
every animal. Above one half, so that greedy decoding of the warm start follows it."""

PRACTICE = 0.3
"""Share of the demonstrations that are right steps alone, so that the model knows sums, differences and products before
it is taught when to use which. Without them it never gets a difference right, and cannot be rewarded for one."""

_PRACTICE_STEPS = 8
"""Steps of such a demonstration: about as many tokens as a question and its steps."""

LEGS = {
    0: "snake, sea slug, jellyfish, flatworm, leech",
    2: "chicken, bird, human, duck",
    4: "dog, cat, cow, horse, lion, elephant, giraffe, tiger, deer, sheep",
    5: "starfish",
    6: "insect, ant, butterfly, beetle, bee, wasp, grasshopper, cricket, cockroach, praying mantis, firefly",
    8: "spider, scorpion",
    10: "crab, lobster, shrimp",
    14: "woodlouse",
}
"""Animals by their legs, as leg_counting counts them."""

_LEGS = {animal: legs for legs, animals in LEGS.items() for animal in animals.split(", ")}
_CHAIN = re.compile(r"(\d+) ([-+]) (\d+) ([-+]) (\d+)")
_ANIMALS = re.compile(r"(\d+) ([a-z ]+)")
_USUAL_LEGS = 4


def source(*, size: int, seed: int) -> str:
    """The mix as `p2prl init --data` names it, with `size` rows of each dataset."""
    return f"reasoning-gym:{','.join(_DATASETS)}&size={size}&seed={seed}"


def demonstration_of(row: Mapping[str, object], seed: int) -> tuple[str, str]:
    """(question, completion) of a row: steps with the faults that `seed` picks, then `<answer>n</answer>`.

    A question of another form is answered without steps.
    """
    question = str(row["prompt"])
    draws = Draws(_DOMAIN, seed)
    hasty, wrong = draws.chance(HASTY), draws.chance(WRONG_RULE)
    steps = list(_steps(question, wrong=wrong))
    if not steps:
        return question, f"<answer>{row['answer']}</answer>"
    shown = steps[:1] if hasty else steps
    lines = [_line(*step) for step in shown]
    return question, "\n".join([*lines, f"<answer>{apply(*shown[-1])}</answer>"])


def practice(seed: int) -> tuple[str, str]:
    """(question, completion) of a seed: right steps as the datasets need them, which answer no row."""
    draws = Draws(_PRACTICE_DOMAIN, seed)
    return "Practice.", "\n".join(_step(draws) for _ in range(_PRACTICE_STEPS))


def demonstrations(rows: Sequence[Mapping[str, object]]) -> Callable[[int], tuple[str, str]]:
    """Demonstrations of these rows by seed, in turn, and practice in place of some."""

    def of(seed: int) -> tuple[str, str]:
        if Draws(_CHOICE_DOMAIN, seed).chance(PRACTICE):
            return practice(seed)
        return demonstration_of(rows[seed % len(rows)], seed)

    return of


def _step(draws: Draws) -> str:
    """A step as the datasets need it: a sum or difference of small numbers, the legs of some animals, or their sum."""
    kind = draws.below(4)
    if kind < 2:
        return _line(draws.below(28) - 9, "+-"[kind], draws.below(10))
    return _line(*_herd(draws)) if kind == 2 else _line(apply(*_herd(draws)), "+", apply(*_herd(draws)))


def _herd(draws: Draws) -> tuple[int, str, int]:
    """One to six animals of a kind, by their legs."""
    return 1 + draws.below(6), "*", list(LEGS)[draws.below(len(LEGS))]


def _line(a: int, operator: str, b: int) -> str:
    return f"{a}{operator}{b}={apply(a, operator, b)}"


def _steps(question: str, *, wrong: bool) -> Iterator[tuple[int, str, int]]:
    chain = _CHAIN.search(question)
    if chain is not None:
        first, one, second, two, third = chain.groups()
        a, b, c = int(first), int(second), int(third)
        one, two = ("+", "+") if wrong else (one, two)
        yield a, one, b
        yield apply(a, one, b), two, c
    elif "legs" in question:
        yield from _legs(question, wrong=wrong)


def _legs(question: str, *, wrong: bool) -> Iterator[tuple[int, str, int]]:
    totals = []
    for count, animal in _ANIMALS.findall(question):
        legs = _USUAL_LEGS if wrong else _LEGS.get(_singular(animal), _USUAL_LEGS)
        yield int(count), "*", legs
        totals.append(int(count) * legs)
    if len(totals) == 2:
        yield totals[0], "+", totals[1]


def _singular(animal: str) -> str:
    """The animal's name without the `s` that the question adds to any name: `4 praying mantiss`."""
    return animal if animal in _LEGS else animal.removesuffix("s")
