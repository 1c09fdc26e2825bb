"""countdown: reach a number from three others with the four operations. Answers are read by a grammar, as fractions.

`Make 46 with 3, 10 and 16: ...` wants any reasoning, then `Answer:` and an expression such as `(3*10)+16`.
Nothing of the answer is executed; datasets of the same name elsewhere evaluate it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from p2prl.errors import LocalProtocolError
from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.task import FAILED, MAX_SCORED_CHARS, Score
from p2prl.tasks.task_spec import SmallModel, TaskSpec

OPERATORS = "+-*/"
ANSWER_MARK = "Answer:"

MAX_EXPRESSION_CHARS = 100
"""Longest answer that is read: three digits, two operators, and all the brackets and spaces anyone needs."""

LEAST_TARGET, GREATEST_TARGET = 10, 99
"""Targets have two digits. So have two of the numbers, 10 to 25; the third has one. All prompts are equally long, which
benchmarks need, and there are about 7,900."""

_PROMPT = (
    "Make {} with {}, {} and {}: use each number once, and + - * / and brackets. End with Answer: and the expression."
)
_PARTS = re.compile(re.escape(_PROMPT).replace(r"\{\}", "([1-9][0-9]?)"))
_TOKEN = re.compile(r" *([0-9]{1,2}|[-+*/()]) *")
_SPELLINGS = str.maketrans({"×": "*", "÷": "/", "−": "-"})
_END = re.compile(r"(?: *= *([0-9]{1,2}))? *\.? *", re.ASCII)

_PROMPT_DOMAIN = b"p2prl/task/countdown/v1"
_DEMONSTRATION_DOMAIN = b"p2prl/demonstration/countdown/v1"

MAX_DRAWS = 1_000
"""Puzzles drawn for one seed: one in five has an acceptable target, so the thousandth is never reached."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Two operations: `(a o b) p c`, or `a o (b p c)` when `right` is set."""

    numbers: tuple[int, int, int]
    """In the order of use."""
    operators: tuple[str, str]
    right: bool

    def expression(self) -> str:
        """As a text that the task accepts."""
        (a, b, c), (o, p) = self.numbers, self.operators
        return f"{a}{o}({b}{p}{c})" if self.right else f"({a}{o}{b}){p}{c}"

    def steps(self) -> tuple[str, Fraction] | None:
        """Both operations worked out, `3*10=30, 30+16=46`, and the result; None for a division by zero."""
        (a, b, c), (o, p) = map(Fraction, self.numbers), self.operators
        left, operator, right = (b, p, c) if self.right else (a, o, b)
        inner = apply(operator, left, right)
        if inner is None:
            return None
        x, outer, y = (a, o, inner) if self.right else (inner, p, c)
        result = apply(outer, x, y)
        if result is None:
            return None
        return f"{left}{operator}{right}={inner}, {_operand(x)}{outer}{_operand(y)}={result}", result


def _operand(value: Fraction) -> str:
    """A number as part of a step; in brackets unless it is a natural number."""
    return str(value) if value >= 0 and value.denominator == 1 else f"({value})"


def apply(operator: str, left: Fraction, right: Fraction) -> Fraction | None:
    """`left operator right`, exactly; None for a division by zero."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    return left / right if right else None


def solution_of(seed: int) -> tuple[Solution, int]:
    """The solution from which a seed's prompt was made, and its target."""
    draws = Draws(_PROMPT_DOMAIN, seed)
    for _ in range(MAX_DRAWS):
        numbers = (1 + draws.below(9), 10 + draws.below(16), 10 + draws.below(16))
        solution = _drawn_solution(draws, numbers)
        worked = solution.steps()
        if worked and worked[1].denominator == 1 and LEAST_TARGET <= worked[1] <= GREATEST_TARGET:
            return solution, int(worked[1])
    raise LocalProtocolError(f"seed {seed} makes no puzzle of countdown")


def parse_prompt(prompt: str) -> tuple[int, tuple[int, ...]] | None:
    """Target and numbers of a prompt; None when the text is not a prompt of this task."""
    match = _PARTS.fullmatch(prompt)
    if match is None:
        return None
    target, small, first, second = map(int, match.groups())
    in_range = target >= LEAST_TARGET and small < 10 <= first <= second <= 25
    return (target, (small, first, second)) if in_range else None


def stated_expression(completion: str, target: int) -> str | None:
    """The expression after the last `Answer:`, without a full stop and `= target`; None when there is none.

    A stated result other than the target makes the answer unreadable, as does any text beyond it.
    """
    _, mark, answer = completion.rpartition(ANSWER_MARK)
    if not mark or len(answer) > MAX_EXPRESSION_CHARS:
        return None
    text = answer.strip(" \n").translate(_SPELLINGS)
    body = re.match(r"[0-9+\-*/() ]*", text)
    assert body is not None, "an empty text matches too"
    end = _END.fullmatch(text, body.end())
    if end is None or (end[1] is not None and int(end[1]) != target):
        return None
    return body[0].strip()


def evaluate(expression: str) -> tuple[Fraction, tuple[int, ...]] | None:
    """Value and numbers, in order, of an expression of numbers up to 99, `+ - * /` and brackets.

    None for anything else, a sign before a number and a division by zero included. At most `MAX_EXPRESSION_CHARS`.
    """
    tokens, place = [], 0
    while place < len(expression):
        match = _TOKEN.match(expression, place)
        if match is None:
            return None
        tokens.append(match[1])
        place = match.end()
    parser = _Parser(tokens[:MAX_EXPRESSION_CHARS])
    value = parser.sum()
    return None if value is None or parser.place != len(tokens) else (value, tuple(parser.numbers))


class _Parser:
    """Recursive descent: sum = product {(+|-) product}, product = atom {(*|/) atom}, atom = number or ( sum )."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.place = [*tokens, ""], 0
        self.numbers: list[int] = []

    def sum(self) -> Fraction | None:
        """The value from here on; None when it cannot be read."""
        value = self.product()
        while value is not None and (operator := self.tokens[self.place]) and operator in "+-":
            self.place += 1
            right = self.product()
            value = None if right is None else apply(operator, value, right)
        return value

    def product(self) -> Fraction | None:
        """As `sum`, for products and quotients."""
        value = self.atom()
        while value is not None and (operator := self.tokens[self.place]) and operator in "*/":
            self.place += 1
            right = self.atom()
            value = None if right is None else apply(operator, value, right)
        return value

    def atom(self) -> Fraction | None:
        """As `sum`, for a number or brackets."""
        token = self.tokens[self.place]
        if token.isdigit():
            self.place += 1
            self.numbers.append(int(token))
            return Fraction(int(token))
        if token != "(":  # noqa: S105
            return None
        self.place += 1
        value = self.sum()
        if value is None or self.tokens[self.place] != ")":
            return None
        self.place += 1
        return value


@dataclass(frozen=True, slots=True)
class Countdown:
    """The task. The reward is 1 if and only if a finished completion ends in `Answer:` and a right expression.

    Right: it uses each number of the prompt exactly once and nothing else, and its exact value is the target. `×`, `÷`
    and `−` (U+2212) are operators too; `= 46` with the right number and a full stop may follow.
    """

    name: str = "countdown"

    def prompt(self, seed: int) -> str:
        """One sentence with two-digit target and the numbers in ascending order, then the form of the answer."""
        solution, target = solution_of(seed)
        return _PROMPT.format(target, *sorted(solution.numbers))

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        puzzle = parse_prompt(prompt)
        if puzzle is None or not finished or len(completion) > MAX_SCORED_CHARS:
            return FAILED
        target, numbers = puzzle
        expression = stated_expression(completion, target)
        result = None if expression is None else evaluate(expression)
        if result is None:
            return FAILED
        return Score(reward=float(result[0] == target and tuple(sorted(result[1])) == numbers))


GUESSES = 0.5
"""Share of demonstrations that guess operators instead of solving: their arithmetic is right and their result is not.
A policy that imitates them knows the form and how to calculate, and learns from rewards alone how to choose."""


def demonstration(seed: int, guesses: float = GUESSES) -> tuple[str, str]:
    """The (prompt, completion) of a 63-bit seed, the completion without its end token.

    `LocalProtocolError` when the seed is outside 0..2^63 − 1.
    """
    solution, _ = solution_of(seed)
    draws = Draws(_DEMONSTRATION_DOMAIN, seed)
    guessed = draws.chance(guesses)
    guess = _drawn_solution(draws, solution.numbers)
    shown = guess if guessed and guess.steps() is not None else solution
    worked = shown.steps()
    assert worked is not None, "a prompt is never made from a division by zero"
    return Countdown().prompt(seed), f"{worked[0]}. {ANSWER_MARK} {shown.expression()}"


def _drawn_solution(draws: Draws, numbers: tuple[int, int, int]) -> Solution:
    """The numbers in one of three orders (the two of two digits are drawn alike), two operators, and the brackets."""
    turn = draws.below(3)
    first, second = OPERATORS[draws.below(4)], OPERATORS[draws.below(4)]
    turned = (numbers[turn], numbers[(turn + 1) % 3], numbers[(turn + 2) % 3])
    return Solution(numbers=turned, operators=(first, second), right=bool(draws.below(2)))


COUNTDOWN = TaskSpec(
    task=Countdown(),
    goal="teach a small model to reach a number from three others, and to check its own arithmetic",
    max_new_tokens=64,  # two steps and the answer are 50 characters at most
    small_model=SmallModel(
        symbols="".join(sorted(set(_PROMPT.replace("{}", "") + "0123456789=()" + ANSWER_MARK))),
        context=192,
        width=64,
        feedforward=256,
        layers=3,
        heads=4,
    ),
    demonstration=demonstration,
)
