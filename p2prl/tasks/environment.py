"""The environment interface: a task of several turns, whose next message depends on its seed and the turns so far.

The model speaks first, to the opening; then environment and model take turns until the environment has nothing more to
say. Every peer computes the messages again from the seed and the model's turns, so an environment must be a pure
function of both, as a task is of its seed (`p2prl/tasks/task.py`). It is installed code, which a run names and never
brings, or a WebAssembly module, which a run brings and which can reach nothing (`p2prl/tasks/wasm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from p2prl.errors import LocalProtocolError
from p2prl.tasks.task import Score

MAX_TURNS = 64
"""Turns of the model in one episode. Reading a transcript asks the environment once a turn, with all turns before it,
so the cost grows with the square; games and tool use need a few dozen."""

MAX_MESSAGE_CHARS = 16_384
"""Characters of one message of an environment. Its tokens travel with every completion, and no credit is paid for them,
so a message should be short; a page of tool output fits."""


class Environment(Protocol):
    """A family of episodes that a program can continue and score."""

    @property
    def name(self) -> str:
        """The name run manifests use."""
        ...

    def opening(self, seed: int) -> str:
        """The prompt of a 63-bit seed. `LocalProtocolError` when the seed is outside 0..2^63 − 1."""
        ...

    def reply(self, seed: int, turns: Sequence[str]) -> str | None:
        """The message after the model's `turns` (one or more, without their stop tokens); None ends the episode.

        Must never raise, and take time linear in the text. Every turn but the last got a message before.
        """
        ...

    def score(self, seed: int, turns: Sequence[str], finished: bool) -> Score:
        """Score an episode. The last of `turns` may be cut off.

        `finished` is true when the environment ended the episode, and false when the length limit or `MAX_TURNS` did.
        Must never raise, and take time linear in the text.
        """
        ...


def next_message(environment: Environment, seed: int, turns: Sequence[str]) -> str | None:
    """What the environment says after `turns`, within the limits; None when it has ended the episode.

    A message of more than `MAX_MESSAGE_CHARS` characters is cut off there.
    """
    message = environment.reply(seed, turns)
    return None if message is None else message[:MAX_MESSAGE_CHARS]


@dataclass(frozen=True, slots=True)
class EnvironmentTask:
    """An environment where a task is expected: its openings are the prompts."""

    environment: Environment

    @property
    def name(self) -> str:
        """The environment's name."""
        return self.environment.name

    def prompt(self, seed: int) -> str:
        """The opening of a seed."""
        return self.environment.opening(seed)

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        """Always an error: an episode is scored by its seed and turns, which a text does not tell."""
        del prompt, completion, finished
        raise LocalProtocolError(f"{self.name} is an environment: its episodes are scored turn by turn")
