"""Prompts of work slots: made from a seed by a procedural task, or read from the rows of a data set.

Every peer of a run agrees on them to the last token. A volunteer needs nothing else of a task, and evaluates no
template: a procedural prompt stands between two fixed texts, and a row is token ids already.

Of several turns, the claim of a group is its tokens alone: which of them the policy sampled is computed here, for the
replay and for training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.turns import TurnRules
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import Completion
from p2prl.protocol.work_slots import RowOrderKey, Slot, row_of
from p2prl.tasks.data.packed_data import PackedPrompts, TaskData
from p2prl.tasks.environment import Environment, EnvironmentTask
from p2prl.tasks.task import Task

Sampled = tuple[tuple[bool, ...], ...]


def inspect_turns(
    turns: TurnRules, completions: Sequence[Completion], token_ids: Sequence[Sequence[int]]
) -> tuple[RejectionReason | str, Sampled]:
    """The first fault of a group's transcripts, empty when there is none; and which tokens the policy sampled.

    The log-probs of an environment's tokens must be 0: no policy gave them, and a slot has one valid group.
    """
    sampled: list[tuple[bool, ...]] = []
    for completion, ids in zip(completions, token_ids, strict=True):
        transcript = turns.read(ids)
        if transcript is None:
            return RejectionReason.BAD_TOKENS, ()
        claimed = np.frombuffer(completion.logprobs, dtype="<f2")
        if np.any(claimed[~np.asarray(transcript.sampled)] != 0):
            return RejectionReason.BAD_TOKENS, ()
        sampled.append(transcript.sampled)
    return "", tuple(sampled)


@dataclass(frozen=True, slots=True)
class SlotPrompt:
    """The prompt of one slot."""

    token_ids: tuple[int, ...]
    text: str = ""
    """What a procedural task made, without the frame; empty for a row of data."""
    row: int | None = None
    """Row of the data set; None for a procedural prompt."""
    held_out: bool = False
    """Whether the row is one of those held out for evaluation."""
    turns: TurnRules | None = None
    """How an environment continues the completions; None in a task of one turn."""


class PromptSource(Protocol):
    """Where the prompts of one task of the mix come from."""

    def prompt(self, work: Slot, peer: bytes, *, held_out: bool) -> SlotPrompt:
        """The prompt of a slot of `peer`. With `held_out`, from the rows for evaluation, if there are any.

        `RemoteProtocolError` when the run gives none that can be read.
        """
        ...


class ProceduralPrompts:
    """Prompts that a program makes from the slot's seed."""

    def __init__(self, task: Task, frame: tuple[str, str], codec: TextCodec) -> None:
        """`frame` is the text before and after each prompt (`RunManifest.prompt_frame`)."""
        self._task = task
        self._frame = frame
        self._codec = codec

    def prompt(self, work: Slot, peer: bytes, *, held_out: bool) -> SlotPrompt:
        """See `PromptSource`. Fresh seeds are held out by themselves."""
        del peer, held_out
        text = self._task.prompt(work.prompt_seed)
        return SlotPrompt(self._codec.encode(text, frame=self._frame, rendered=any(self._frame)), text)


class DataPrompts:
    """Prompts that are rows of a data set: each once a pass, in an order of the peer's own."""

    def __init__(self, run: bytes, task: str, data: TaskData) -> None:
        self._run = run
        self._task = task
        self._data = data

    def prompt(self, work: Slot, peer: bytes, *, held_out: bool) -> SlotPrompt:
        """See `PromptSource`."""
        prompts = self._data.split(held_out=held_out).prompts
        row = row_of(RowOrderKey(self._run, peer, self._task), work.number, len(prompts))
        return self.row(row, held_out=held_out)

    def row(self, row: int, *, held_out: bool) -> SlotPrompt:
        """The prompt of a row."""
        split = self._data.split(held_out=held_out)
        return SlotPrompt(_read(split.prompts, row), row=row, held_out=split is self._data.held_out)


def _read(prompts: PackedPrompts, row: int) -> tuple[int, ...]:
    try:
        return prompts.token_ids(row)
    except IntegrityError as error:  # the bytes are those of the manifest: the run's learner made them so
        raise RemoteProtocolError(f"the run's data cannot be used: {error}") from error


def seeded_prompts(task: Task, manifest: RunManifest, codec: TextCodec) -> PromptSource:
    """The prompts of a task that makes them from seeds."""
    prompts = ProceduralPrompts(task, manifest.prompt_frame, codec)
    if not isinstance(task, EnvironmentTask):
        return prompts
    return EnvironmentPrompts(task.environment, prompts, manifest, codec)


class EnvironmentPrompts:
    """The openings of an environment, each with the rules of the turns that follow."""

    def __init__(
        self, environment: Environment, openings: ProceduralPrompts, manifest: RunManifest, codec: TextCodec
    ) -> None:
        self._environment = environment
        self._openings = openings
        self._manifest = manifest
        self._codec = codec

    def prompt(self, work: Slot, peer: bytes, *, held_out: bool) -> SlotPrompt:
        """See `PromptSource`."""
        opening = self._openings.prompt(work, peer, held_out=held_out)
        turns = TurnRules(
            environment=self._environment,
            seed=work.prompt_seed,
            codec=self._codec,
            max_new_tokens=self._manifest.sampling.max_new_tokens,
            frame=self._manifest.turn_frame,
        )
        return replace(opening, turns=turns)
