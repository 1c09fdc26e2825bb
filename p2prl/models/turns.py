"""Transcripts of an environment as token ids: what follows a turn, and which tokens the policy sampled.

A completion of several turns is one list of tokens: the model's turn with its stop token, the environment's message,
the model's next turn, and so on. Whoever has the seed and the tokens can tell all of it apart again, so nothing about
turns travels: messages are computed, compared, and left out of replay and training.

A turn is decoded from its own tokens, and a message is encoded alone, without special tokens. Neither depends on how
text around it would be tokenized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.models.text_codec import TextCodec
from p2prl.tasks.environment import MAX_TURNS, Environment, next_message
from p2prl.tasks.task import FAILED, Score


@dataclass(frozen=True, slots=True)
class Transcript:
    """A completion of several turns, read."""

    turns: tuple[str, ...]
    """The model's turns, without their stop tokens."""
    sampled: tuple[bool, ...]
    """For each token, whether the policy sampled it; false for the environment's."""
    finished: bool
    """Whether the environment ended the episode, rather than a limit."""


@dataclass(frozen=True, slots=True)
class TurnRules:
    """How an environment continues the completions of one slot."""

    environment: Environment
    seed: int
    """The slot's prompt seed."""
    codec: TextCodec
    max_new_tokens: int
    """Most tokens of a transcript after its prompt, the environment's included."""
    frame: tuple[str, str] = ("", "")
    """Text before and after every message."""

    def message_after(self, token_ids: Sequence[int]) -> tuple[int, ...] | None:
        """Tokens of the environment after a transcript that ends in a stop token; None when the transcript ends there.

        `token_ids` is a transcript as far as it was sampled, its earlier messages included.
        """
        turns: list[str] = []
        start = 0
        while True:
            end = self._stop_from(token_ids, start)
            assert end is not None, "a transcript is continued after a stop token"
            turns.append(self.codec.decode(token_ids[start:end]))
            message, _ = self._message(turns, end + 1)
            if message is None or end + 1 == len(token_ids):
                return message
            start = end + 1 + len(message)

    def read(self, token_ids: Sequence[int]) -> Transcript | None:
        """Read a transcript of a stranger; None when it is not what sampling under these rules gives.

        That is: a message differs, is missing or too many, the transcript goes on after the episode's end, or it stops
        before its end and before the limit.
        """
        ids = tuple(token_ids)
        if len(ids) > self.max_new_tokens:
            return None
        turns: list[str] = []
        sampled: list[bool] = []
        start = 0
        while (end := self._stop_from(ids, start)) is not None:
            turns.append(self.codec.decode(ids[start:end]))
            sampled += [True] * (end + 1 - start)
            message, ended = self._message(turns, end + 1)
            if message is None:
                return Transcript(tuple(turns), tuple(sampled), ended) if end + 1 == len(ids) else None
            start = end + 1 + len(message)
            if ids[end + 1 : start] != message:
                return None
            sampled += [False] * len(message)
        if len(ids) < self.max_new_tokens:
            return None
        turns.append(self.codec.decode(ids[start:]))
        return Transcript(tuple(turns), (*sampled, *[True] * (len(ids) - start)), finished=False)

    def score(self, token_ids: Sequence[int]) -> Score:
        """The environment's verdict on a transcript; `FAILED` on one that `read` refuses."""
        read = self.read(token_ids)
        return FAILED if read is None else self.environment.score(self.seed, read.turns, read.finished)

    def sampled_tokens(self, token_ids: Sequence[int]) -> int:
        """Tokens of a transcript that the policy sampled."""
        read = self.read(token_ids)
        return 0 if read is None else sum(read.sampled)

    def _stop_from(self, token_ids: Sequence[int], start: int) -> int | None:
        """Index of the first stop token from `start` on."""
        return next((i for i in range(start, len(token_ids)) if token_ids[i] in self.codec.stop_ids), None)

    def _message(self, turns: Sequence[str], size: int) -> tuple[tuple[int, ...] | None, bool]:
        """The message after `turns`, which end at token `size`; None at the end, and whether the environment ended it.

        A message that leaves no room for another token of the model is not sent.
        """
        text = next_message(self.environment, self.seed, turns)
        if text is None:
            return None, True
        if len(turns) >= MAX_TURNS:
            return None, False
        message = self.codec.encode(self.frame[0] + text + self.frame[1], rendered=True)
        return (message, False) if size + len(message) < self.max_new_tokens else (None, False)
