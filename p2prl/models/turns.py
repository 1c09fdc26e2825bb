"""Transcripts of an environment as token ids: what follows a turn, and which tokens the policy sampled.

A completion of several turns is one list of tokens: the model's turn with its stop token, the environment's message,
the model's next turn, and so on. Anybody with the seed and the tokens can tell all of it apart again, so nothing about
turns travels: messages are computed, compared, and left out of replay and training.

A turn is decoded from its own tokens, and a message is encoded alone, without special tokens. Neither depends on how
text around it would be tokenized. Control tokens in the text of a message are read as characters: an environment that
repeats what the model said, or a page of the web, ends no turn and begins none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.models.tokenizer.text_codec import TextCodec
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

    def read(self, token_ids: Sequence[int]) -> Transcript | None:
        """Read a transcript of a stranger; None when it is not what sampling under these rules gives.

        That is: a message differs, is missing or too many, the transcript goes on after the episode's end, or it stops
        before its end and before the limit.
        """
        ids = tuple(token_ids)
        if len(ids) > self.max_new_tokens:
            return None
        episode = Episode(self)
        sampled: list[bool] = []
        start = 0
        while (stop := self._stop_from(ids, start)) is not None:
            message = episode.end_turn(ids[start : stop + 1])
            sampled += [True] * (stop + 1 - start)
            if message is None:
                whole = stop + 1 == len(ids)
                return Transcript(tuple(episode.turns), tuple(sampled), episode.finished) if whole else None
            start = stop + 1 + len(message)
            if ids[stop + 1 : start] != message:
                return None
            sampled += [False] * len(message)
        if len(ids) < self.max_new_tokens:
            return None
        turns = (*episode.turns, self.codec.decode(ids[start:]))
        return Transcript(turns, (*sampled, *[True] * (len(ids) - start)), finished=False)

    def score(self, token_ids: Sequence[int]) -> Score:
        """The environment's verdict on a transcript; `FAILED` on one that `read` refuses."""
        read = self.read(token_ids)
        return FAILED if read is None else self.environment.score(self.seed, read.turns, read.finished)

    def _stop_from(self, token_ids: Sequence[int], start: int) -> int | None:
        """Index of the first stop token from `start` on."""
        return next((i for i in range(start, len(token_ids)) if token_ids[i] in self.codec.stop_ids), None)


class Episode:
    """One transcript while it grows, turn by turn."""

    def __init__(self, rules: TurnRules) -> None:
        self._rules = rules
        self._size = 0
        self.turns: list[str] = []
        """The model's turns so far, without their stop tokens."""
        self.finished = False
        """Whether the environment has ended the episode."""

    def end_turn(self, token_ids: Sequence[int]) -> tuple[int, ...] | None:
        """Take the model's next turn, with its stop token; return the environment's message.

        None when the transcript ends there: the environment has nothing to say, or a limit is reached. A message that
        would leave no room for another token of the model is not sent.
        """
        rules = self._rules
        self.turns.append(rules.codec.decode(token_ids[:-1]))
        self._size += len(token_ids)
        text = next_message(rules.environment, rules.seed, self.turns)
        if text is None:
            self.finished = True
            return None
        if len(self.turns) >= MAX_TURNS:
            return None
        message = rules.codec.encode(text, frame=rules.frame, rendered=True)
        self._size += len(message)
        return message if self._size < rules.max_new_tokens else None
