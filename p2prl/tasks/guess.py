"""guess: find a number from 0 to 99 in seven guesses, told after each whether the number is higher or lower.

The opening is `00-99?`. A turn is one guess, such as `50`; the environment answers `+` (the number is higher) or `-`
(it is lower). Bisection always finds the number, and every guess needs what the answers before have left possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.errors import ConfigError
from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.digit_chains import DIGITS
from p2prl.tasks.environment import EnvironmentTask
from p2prl.tasks.task import FAILED, Score
from p2prl.tasks.task_spec import SmallModel, TaskSpec, TurnsDemonstration

NUMBERS = 100
GUESSES = 7
"""Bisection finds one of 2^7 − 1 numbers."""

OPENING = "00-99?"
HIGHER, LOWER = "+", "-"
SYMBOLS = DIGITS + HIGHER + LOWER + "?"
"""Every character of an opening, an answer or a readable guess."""

_GUESS_CHARS = 2
_NUMBER_DOMAIN = b"p2prl/task/guess/v1"
_DEMONSTRATION_DOMAIN = b"p2prl/demonstration/guess/v1"


def number_of(seed: int) -> int:
    """The number to find. `LocalProtocolError` when the seed is outside 0..2^63 − 1."""
    return Draws(_NUMBER_DOMAIN, seed).below(NUMBERS)


def read_guess(turn: str) -> int | None:
    """The number a turn names: two digits, with or without spaces around them; None for any other text."""
    # The length is checked first: a turn may be long, and comes from a stranger.
    text = turn.strip(" ") if len(turn) <= 2 * _GUESS_CHARS else ""
    return int(text) if len(text) == _GUESS_CHARS and set(text) <= set(DIGITS) else None


@dataclass(frozen=True, slots=True)
class Guess:
    """The environment. The reward is 1 if and only if the last guess is the number; an unreadable guess ends it."""

    name: str = "guess"

    def opening(self, seed: int) -> str:
        """The same six characters for every seed: nothing tells the number."""
        number_of(seed)
        return OPENING

    def reply(self, seed: int, turns: Sequence[str]) -> str | None:
        number, guess = number_of(seed), read_guess(turns[-1])
        if guess is None or guess == number or len(turns) >= GUESSES:
            return None
        return HIGHER if number > guess else LOWER

    def score(self, seed: int, turns: Sequence[str], finished: bool) -> Score:
        if not finished or not turns:
            return FAILED
        return Score(reward=float(read_guess(turns[-1]) == number_of(seed)))


@dataclass(frozen=True, kw_only=True, slots=True)
class GuessFaults:
    """Fault rates of the demonstrations."""

    creep: float
    """Share of demonstrations that stop bisecting after a random guess, and go on in steps of one. Within 0..1."""

    forget: float
    """Probability that a guess after `-` forgets the lower bound, and halves the last guess instead. Within 0..1."""

    slip: float
    """Probability that one guess is any number. Within 0..1."""

    def __post_init__(self) -> None:
        for name in ("creep", "forget", "slip"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name} is {value}", remedy=f"Set {name} to a probability within 0..1.")


FAULTS = GuessFaults(creep=0.5, forget=0.65, slip=0.02)
"""Systematic, as in chain4: a policy must give up a habit, creeping, and unlearn a wrong rule, forgetting."""


def demonstrated_turns(seed: int, faults: GuessFaults = FAULTS) -> tuple[str, ...]:
    """The guesses of one demonstration. `LocalProtocolError` when the seed is outside 0..2^63 − 1."""
    number, draws = number_of(seed), Draws(_DEMONSTRATION_DOMAIN, seed)
    # Make all draws, needed or not, so that changing one rate leaves all other draws unchanged.
    creeps, creeps_from = draws.chance(faults.creep), 1 + draws.below(GUESSES - 1)
    low, high = 0, NUMBERS - 1
    turns: list[str] = []
    last, step = 0, 0
    for turn in range(GUESSES):
        forgets, slips, slip = draws.chance(faults.forget), draws.chance(faults.slip), draws.below(NUMBERS)
        guess = (low + high + 1) // 2
        if step < 0 and forgets:
            guess = last // 2
        if creeps and turn >= creeps_from:
            guess = min(NUMBERS - 1, max(0, last + step))
        guess = slip if slips else guess
        turns.append(f"{guess:02d}")
        if guess == number:
            break
        last, step = guess, 1 if number > guess else -1
        low, high = (max(low, guess + 1), high) if step > 0 else (low, min(high, guess - 1))
    return tuple(turns)


_ENVIRONMENT = Guess()

GUESS = TaskSpec(
    task=EnvironmentTask(_ENVIRONMENT),
    goal="teach a small model to find a number by asking: higher or lower?",
    max_new_tokens=GUESSES * (_GUESS_CHARS + 1) + GUESSES,  # guesses with their stop tokens, answers, one to spare
    small_model=SmallModel(symbols=SYMBOLS, context=48),
    demonstration=TurnsDemonstration(environment=_ENVIRONMENT, turns=demonstrated_turns),
)
