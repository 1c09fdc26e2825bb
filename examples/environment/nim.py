"""nim: take one to three sticks in turn with the environment; whoever takes the last one wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.environment import EnvironmentTask
from p2prl.tasks.task import FAILED, Score
from p2prl.tasks.task_spec import SmallModel, TaskSpec, TurnsDemonstration

MOST_STICKS = 17


def sticks_at_start(seed: int) -> int:
    """Sticks on the table: 9 to 17."""
    return 9 + Draws(b"nim/sticks/v1", seed).below(MOST_STICKS - 8)


def our_move(seed: int, turn: int, sticks: int) -> int:
    """What the environment takes after the model's turn number `turn`: any legal number, fixed by the seed."""
    draws = Draws(b"nim/move/v1", seed)
    moves = [1 + draws.below(3) for _ in range(turn)]
    return min(moves[-1], sticks)


def sticks_after(seed: int, turns: Sequence[str]) -> int | None:
    """Sticks that the last of `turns` leaves; None after an illegal move, or when there was nothing left to take."""
    sticks = sticks_at_start(seed)
    for number, turn in enumerate(turns, 1):
        if turn not in ("1", "2", "3") or int(turn) > sticks:
            return None
        sticks -= int(turn)
        if number < len(turns):
            sticks -= our_move(seed, number, sticks)
    return sticks


@dataclass(frozen=True, slots=True)
class Nim:
    """The environment. The reward is 1 for taking the last stick; an illegal move loses."""

    name: str = "nim"

    def opening(self, seed: int) -> str:
        """The number of sticks, such as `13:`."""
        return f"{sticks_at_start(seed)}:"

    def reply(self, seed: int, turns: Sequence[str]) -> str | None:
        """What is taken and what is left, such as `-2=8:`; None when the game is over."""
        sticks = sticks_after(seed, turns)
        if not sticks:
            return None
        taken = our_move(seed, len(turns), sticks)
        return f"-{taken}={sticks - taken}:" if taken < sticks else None

    def score(self, seed: int, turns: Sequence[str], finished: bool) -> Score:
        """1 when the model's last turn leaves nothing."""
        return Score(reward=1.0) if finished and sticks_after(seed, turns) == 0 else FAILED


def demonstration(seed: int) -> tuple[str, ...]:
    """A player who sees a win only when it is one move away, and takes a random number else."""
    game, draws = Nim(), Draws(b"nim/demonstration/v1", seed)
    turns: list[str] = []
    while not turns or game.reply(seed, turns) is not None:
        left = sticks_at_start(seed)
        if turns:
            after = sticks_after(seed, turns) or 0
            left = after - our_move(seed, len(turns), after)
        turns.append(str(left if left <= 3 else 1 + draws.below(3)))
    return tuple(turns)


_NIM = Nim()

NIM = TaskSpec(
    task=EnvironmentTask(_NIM),
    goal="teach a small model to take the last stick",
    max_new_tokens=MOST_STICKS // 2 * 8,  # a move with its stop token, and an answer of up to six symbols
    small_model=SmallModel(symbols="0123456789:-=", context=80),
    demonstration=TurnsDemonstration(environment=_NIM, turns=demonstration),
)
