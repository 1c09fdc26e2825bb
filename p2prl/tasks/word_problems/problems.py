"""Word problems of seeds, rows of a data set, and the faulty demonstrations of a warm start."""

from __future__ import annotations

from collections.abc import Iterator

from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.word_problems.templates import HOLDERS, KINDS, NAMES, THINGS, Cast, Problem, apply

_PROBLEM_DOMAIN = b"p2prl/word-problem/v1"
_DEMONSTRATION_DOMAIN = b"p2prl/word-problem-demonstration/v1"

HASTY = 0.35
"""Share of the demonstrations that give the result of the first step as the answer."""

TIMES_AS_PLUS = 0.62
"""Share of the demonstrations that work every multiplication as an addition. Above one half, so that greedy decoding
of the warm start makes this mistake; not close to one, so that sampling finds the right way now and then."""

SLIP = 0.02
"""Probability that the result of a step is off by one."""


def word_problem(seed: int) -> Problem:
    """The problem of a 63-bit seed. Different seeds can give the same problem."""
    draws = Draws(_PROBLEM_DOMAIN, seed)
    first = draws.below(len(NAMES))
    second = (first + 1 + draws.below(len(NAMES) - 1)) % len(NAMES)
    things, holders = THINGS[draws.below(len(THINGS))], HOLDERS[draws.below(len(HOLDERS))]
    cast = Cast(NAMES[first], NAMES[second], things, holders, draws.below(8) & draws.below(8))
    return KINDS[draws.below(len(KINDS))](draws, cast)


def solution(problem: Problem) -> str:
    """The answer as GSM8K writes it: the steps, one a line, then `#### n`."""
    lines = [f"{a}{operator}{b}={apply(a, operator, b)}" for a, operator, b in problem.steps]
    return "\n".join([*lines, f"#### {problem.answer}"])


def word_problem_rows(seed: int) -> Iterator[dict[str, str]]:
    """Rows `question`, `answer` without end, no question twice. Different seeds give different rows."""
    seen: set[str] = set()
    for number in range(1 << 32):
        problem = word_problem((seed << 32 | number) % (1 << 62))
        if problem.question not in seen:
            seen.add(problem.question)
            yield {"question": problem.question, "answer": solution(problem)}


def demonstration(seed: int) -> tuple[str, str]:
    """(question, completion) of a 63-bit seed, often wrong: answered too early, or multiplied by adding."""
    # Seeds of demonstrations and of rows never meet: the highest bit of the seed is set here.
    problem = word_problem(seed % (1 << 62) | 1 << 62)
    draws = Draws(_DEMONSTRATION_DOMAIN, seed)
    hasty, adds = draws.chance(HASTY), draws.chance(TIMES_AS_PLUS)
    results: list[int] = []
    lines = []
    for (left, operator, right), (from_left, from_right) in zip(problem.steps, problem.follows, strict=True):
        slipped = draws.chance(SLIP)
        a = results[from_left] if from_left >= 0 else left
        b = results[from_right] if from_right >= 0 else right
        used = "+" if operator == "*" and adds else operator
        results.append(max(0, apply(a, used, b)) + slipped)
        lines.append(f"{a}{used}{b}={results[-1]}")
        if hasty:
            break
    return problem.question, "\n".join([*lines, f"#### {results[-1]}"])
