"""Rollouts that a run was trained on, as a researcher reads them: text, reward and its parts, advantage, staleness.

Shape legend: B groups, G completions.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import torch

from p2prl.learner.journal.groups import StoredGroup
from p2prl.learner.journal.rollout_reader import KeptRollouts
from p2prl.learner.training.loss_pipeline import LossPipelineConfig
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.rewards.run_reward import Parts
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.signed_group import read_group

Order = Literal["newest", "best", "worst", "random"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which rollouts to show."""

    order: Order = "newest"
    """Of the kept ones; within one update as they were trained on. Ties go to the newest."""
    count: int = 8
    """Most rollouts, at least 1."""
    step: int | None = None
    """Of this update alone, as metrics.jsonl counts them; None for all."""
    peer: bytes | None = None
    """Of the volunteer with this public key alone."""
    task: str | None = None
    """Of this task alone."""
    seed: int = 0
    """Of a random choice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """One completion that was trained on; with many fields, because each is a key of `p2prl rollouts --json`."""

    step: int
    """The update, as metrics.jsonl counts them: 1 is the first."""
    version: int
    """Policy version that sampled it."""
    staleness: int
    """Updates between that policy and the one that was trained."""
    peer: bytes
    """Public key of the volunteer."""
    group: bytes
    """Digest of its group."""
    task: str
    prompt: str
    completion: str
    """Text without the stop token."""
    tokens: int
    """Length, the stop token included."""
    finished: bool
    """Whether a stop token ended it, rather than the run's longest completion."""
    reward: float
    """As the learner computed it."""
    parts: Parts
    """What each scorer added to the reward, computed again now; empty for a group of a release with other prompts."""
    advantage: float | None
    """By the run's present settings; None where it differs from token to token, or where some groups of the update are
    no longer kept."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    step: int
    stored: StoredGroup
    contents: RolloutGroup
    place: int
    reward: float


class RolloutReader:
    """Reads the kept rollouts of one run."""

    def __init__(
        self,
        kept: KeptRollouts,
        work: GroupWork,
        codec: TextCodec,
        *,
        loss: LossPipelineConfig,
    ) -> None:
        """`work` scores rows of data too."""
        self._kept = kept
        self._work = work
        self._codec = codec
        self._loss = loss

    def steps(self) -> list[int]:
        """The updates whose rollouts are kept, as metrics.jsonl counts them, in order."""
        return [step + 1 for step in self._kept.steps()]

    def read(self, wanted: Wanted) -> list[Rollout]:
        """The wanted rollouts; fewer where fewer are kept."""
        steps = [step for step in reversed(self._kept.steps()) if wanted.step in (None, step + 1)]
        found = _chosen((each for step in steps for each in self._candidates(step, wanted)), wanted)
        advantages = {step: self._advantages(step) for step in {each.step for each in found}}
        shown: dict[bytes, list[tuple[str, str, Parts]]] = {}
        rollouts = []
        for each in found:
            digest = each.stored.digest
            if digest not in shown:
                shown[digest] = self._texts(each)
            prompt, completion, parts = shown[digest][each.place]
            mine = advantages[each.step].get(digest)
            policy = self._kept.policy(each.stored.version)
            sampled = each.contents.completions[each.place]
            rollouts.append(
                Rollout(
                    step=each.step + 1,
                    version=each.stored.version,
                    staleness=each.step - policy.step,
                    peer=each.stored.peer,
                    group=digest,
                    task=each.contents.task,
                    prompt=prompt,
                    completion=completion,
                    tokens=len(sampled.tokens) // 4,
                    finished=sampled.finished,
                    reward=each.reward,
                    parts=parts,
                    advantage=None if mine is None else mine[each.place],
                )
            )
        return rollouts

    def _candidates(self, step: int, wanted: Wanted) -> Iterable[_Candidate]:
        for stored in self._kept.batch(step):
            if wanted.peer not in (None, stored.peer):
                continue
            contents = read_group(stored.raw, stored.body).group
            if wanted.task not in (None, contents.task):
                continue
            for place, reward in enumerate(np.frombuffer(stored.rewards, dtype="<f4").tolist()):
                yield _Candidate(step, stored, contents, place, reward)

    def _texts(self, candidate: _Candidate) -> list[tuple[str, str, Parts]]:
        """Prompt, completion and parts of each of a group's completions."""
        stored, group = candidate.stored, candidate.contents
        prompt = self._codec.decode(_ids(group.prompt))
        texts = [
            self._codec.decode(ids[:-1] if each.finished else ids)
            for each in group.completions
            for ids in [_ids(each.tokens)]
        ]
        policy = self._kept.policy(stored.version)
        inspection = self._work.inspect(group, peer=stored.peer, beacon=policy.beacon)
        if inspection.reason:  # an earlier release sampled it, whose slots had other prompts
            return [(prompt, text, {}) for text in texts]
        assignment, ids = inspection.assignment, inspection.token_ids
        parts = self._work.start_rewards(assignment, ids)().parts
        return [(prompt, text, part) for text, part in zip(texts, parts, strict=True)]

    def _advantages(self, step: int) -> Mapping[bytes, list[float]]:
        """Advantages of an update's completions by group; nothing where they cannot be told (`Rollout.advantage`)."""
        objective, batch = self._loss.objective, self._kept.batch(step)
        by_token = self._loss.credits_steps and objective.spec.token_advantages
        if by_token or self._loss.value is not None or len(batch) < self._kept.groups_at(step):
            return {}
        rewards_BG = np.stack([np.frombuffer(stored.rewards, dtype="<f4") for stored in batch])
        lengths_BG = [_trained_tokens(stored) for stored in batch]
        advantages = objective.advantages(torch.from_numpy(rewards_BG), torch.tensor(lengths_BG))
        return {stored.digest: row for stored, row in zip(batch, advantages.advantages_BG.tolist(), strict=True)}


def _ids(raw: bytes) -> list[int]:
    return [int(token) for token in np.frombuffer(raw, dtype="<u4")]


def _trained_tokens(stored: StoredGroup) -> list[int]:
    """Tokens of each completion that are trained on: all but those of an environment."""
    completions = read_group(stored.raw, stored.body).group.completions
    ends = np.cumsum([len(each.tokens) // 4 for each in completions])
    behavior = np.split(np.frombuffer(stored.behavior, dtype="<f4"), ends[:-1])
    return [int(np.count_nonzero(~np.isnan(logprobs))) for logprobs in behavior]


def _chosen(candidates: Iterable[_Candidate], wanted: Wanted) -> list[_Candidate]:
    """The wanted of the candidates, which come newest update first."""
    if wanted.order == "newest":
        return list(islice(candidates, wanted.count))
    known = list(candidates)
    if wanted.order == "random":
        draws = random.Random(wanted.seed)  # noqa: S311 - what people look at
        return draws.sample(known, min(wanted.count, len(known)))
    return sorted(known, key=lambda each: each.reward, reverse=wanted.order == "best")[: wanted.count]
