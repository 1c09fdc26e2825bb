"""Kinds of word problems: a story with gaps, and the steps that solve it.

Every number is small, so that a model of a few million parameters can learn the arithmetic in a minute. What it has to
find out is which steps a story asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from p2prl.tasks.counter_rng import Draws

NAMES = (
    "Ada", "Ben", "Chloe", "Dan", "Emma", "Finn", "Grace", "Hugo", "Ivy", "Jack", "Kate", "Leo",
    "Mia", "Noah", "Olga", "Paul", "Ruth", "Sam", "Tina", "Uma", "Vera", "Will", "Yara", "Zoe",
)  # fmt: skip
THINGS = (
    "apples", "balls", "beads", "books", "buttons", "cakes", "candles", "cards", "coins", "cookies", "cups", "eggs",
    "flowers", "lemons", "marbles", "nuts", "oranges", "pears", "pencils", "plums", "shells", "stamps", "stickers",
    "stones",
)  # fmt: skip
HOLDERS = ("bags", "baskets", "boxes", "jars", "packs", "trays")

NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

Step = tuple[int, str, int]
"""Left number, operator (`+`, `-` or `*`), right number."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A word problem."""

    question: str
    steps: tuple[Step, ...]
    """The steps in order. A step uses results of earlier steps, as `follows` says."""
    follows: tuple[tuple[int, int], ...]
    """For each step, the earlier step whose result is its left and its right number; -1 where the story states the
    number."""

    @property
    def answer(self) -> int:
        """The result of the last step."""
        return apply(*self.steps[-1])


def apply(left: int, operator: str, right: int) -> int:
    """The result of one step."""
    return left + right if operator == "+" else left - right if operator == "-" else left * right


@dataclass(frozen=True, slots=True)
class Cast:
    """Who and what a story is about, and how it writes numbers."""

    name: str
    other: str
    things: str
    holders: str
    spelled: int
    """Bit n set: the story's number n is written as a word."""

    def number(self, value: int, place: int) -> str:
        """The story's number at this place, in digits or as a word."""
        is_word = value < len(NUMBER_WORDS) and self.spelled >> place & 1
        return NUMBER_WORDS[value] if is_word else str(value)


def _between(draws: Draws, low: int, high: int) -> int:
    return low + draws.below(high - low + 1)


def _gain_and_loss(draws: Draws, cast: Cast) -> Problem:
    a, b = _between(draws, 2, 9), _between(draws, 2, 9)
    c = _between(draws, 1, a + b - 1) if a + b <= 10 else _between(draws, 1, 9)
    x, y, z = (cast.number(value, place) for place, value in enumerate((a, b, c)))
    story = (
        f"{cast.name} has {x} {cast.things}, gets {y} more and gives {z} away.",
        f"{cast.name} finds {x} {cast.things}, then {y} more, and loses {z} of them.",
    )[draws.below(2)]
    question = f"{story} How many {cast.things} does {cast.name} have now?"
    return Problem(question, ((a, "+", b), (a + b, "-", c)), ((-1, -1), (0, -1)))


def _holders_and_rest(draws: Draws, cast: Cast) -> Problem:
    a, b, c = _between(draws, 2, 5), _between(draws, 2, 6), _between(draws, 1, 9)
    x, y, z = (cast.number(value, place) for place, value in enumerate((a, b, c)))
    story = (
        f"{cast.name} has {x} {cast.holders} with {y} {cast.things} each and {z} other {cast.things}.",
        f"{cast.name} buys {x} {cast.holders} of {y} {cast.things} each and finds {z} more.",
    )[draws.below(2)]
    question = f"{story} How many {cast.things} does {cast.name} have in all?"
    return Problem(question, ((a, "*", b), (a * b, "+", c)), ((-1, -1), (0, -1)))


def _comparison(draws: Draws, cast: Cast) -> Problem:
    a, b = _between(draws, 2, 9), _between(draws, 2, 9)
    x, y = (cast.number(value, place) for place, value in enumerate((a, b)))
    story = f"{cast.name} has {x} {cast.things}. {cast.other} has {y} more than {cast.name}."
    question = f"{story} How many {cast.things} do they have together?"
    return Problem(question, ((a, "+", b), (a + b, "+", a)), ((-1, -1), (0, -1)))


def _eaten(draws: Draws, cast: Cast) -> Problem:
    b, c = _between(draws, 2, 5), _between(draws, 2, 5)
    a = b * c + _between(draws, 1, 9)
    x, y, z = (cast.number(value, place) for place, value in enumerate((a, b, c)))
    story = (
        f"{cast.name} has {x} {cast.things}. Each of {y} friends takes {z} of them.",
        f"{cast.name} has {x} {cast.things} and puts {z} into each of {y} {cast.holders}.",
    )[draws.below(2)]
    question = f"{story} How many {cast.things} are left?"
    return Problem(question, ((b, "*", c), (a, "-", b * c)), ((-1, -1), (-1, 0)))


def _times_as_many(draws: Draws, cast: Cast) -> Problem:
    a, k = _between(draws, 2, 9), _between(draws, 2, 4)
    x, y = (cast.number(value, place) for place, value in enumerate((a, k)))
    story = f"{cast.name} has {x} {cast.things}. {cast.other} has {y} times as many."
    question = f"{story} How many {cast.things} do they have together?"
    return Problem(question, ((a, "*", k), (a * k, "+", a)), ((-1, -1), (0, -1)))


KINDS: tuple[Callable[[Draws, Cast], Problem], ...] = (
    _gain_and_loss,
    _holders_and_rest,
    _comparison,
    _eaten,
    _times_as_many,
)
"""Each makes a problem; every seed picks one of them with equal chances."""
