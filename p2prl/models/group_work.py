"""Rollout groups between the wire and tensors: assign a slot, pack its completions, inspect a group without a model.

Volunteers build groups with it; the learner and the validators check them with it, so all agree on the meaning of a
slot. The second half of a check, which needs a model, is `p2prl/models/group_replay.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from p2prl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from p2prl.models.rewards import RunReward
from p2prl.models.sampler_port import Generation, GenerationRequest, Sampler
from p2prl.models.scorer_port import Scorer
from p2prl.models.text_codec import TextCodec
from p2prl.models.turn_inspection import inspect_turns
from p2prl.models.turns import TurnRules
from p2prl.protocol import limits
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import Completion, EngineClass, RolloutGroup
from p2prl.protocol.work_slots import SlotKey, slot_work
from p2prl.tasks.environment import EnvironmentTask
from p2prl.tasks.task import Score, Task


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """The work of one slot, ready to sample."""

    slot: int
    task: str
    prompt: str
    requests: tuple[GenerationRequest, ...]
    """Empty in the inspection of a slot without valid work."""

    @property
    def turns(self) -> TurnRules | None:
        """How an environment continues the completions; None in a task of one turn."""
        return self.requests[0].turns if self.requests else None


@dataclass(frozen=True, slots=True)
class Inspection:
    """Result of checking a group without a model. `reason` is empty when nothing is wrong so far."""

    reason: str
    assignment: SlotAssignment
    token_ids: tuple[tuple[int, ...], ...]
    rewards: tuple[float, ...]
    sampled: tuple[tuple[bool, ...], ...] = ()
    """For each token, whether the policy sampled it rather than an environment; empty in a task of one turn."""


def longest_prompt(context: int | None, max_new_tokens: int) -> int:
    """Tokens of the longest prompt that leaves room in the model's context for the longest completion."""
    return limits.MAX_PROMPT_TOKENS if context is None else min(limits.MAX_PROMPT_TOKENS, context - max_new_tokens)


class GroupWork:
    """Assigns, packs and inspects the rollout groups of one run."""

    def __init__(self, manifest: RunManifest, run: bytes, codec: TextCodec) -> None:
        """`ConfigError` when this machine lacks a task or a reward of the run."""
        self._manifest = manifest
        self._run = run
        self._codec = codec
        try:
            self._reward = RunReward(manifest.reward, [share.task for share in manifest.tasks])
        except ConfigError as error:
            raise ConfigError(
                f"this machine cannot work for the run: {error}",
                remedy="Install the release, and any task package, that the run was created with.",
            ) from error

    @property
    def dtype(self) -> str:
        """The dtype the run computes in."""
        return self._manifest.engine_dtype

    @property
    def group_size(self) -> int:
        """Completions of a slot."""
        return self._manifest.sampling.group_size

    def assign(self, *, policy: bytes, beacon: bytes, peer: bytes, slot: int) -> SlotAssignment:
        """The one valid work of a slot. `RemoteProtocolError` when it has none: its prompt does not fit the run."""
        sampling = self._manifest.sampling
        key = SlotKey(run=self._run, beacon=beacon, policy=policy, peer=peer, slot=slot)
        work = slot_work(key, self._manifest.tasks, sampling.group_size)
        task = self._reward.task(work.task)
        prompt = task.prompt(work.prompt_seed)
        prompt_ids = self._codec.encode(prompt)
        longest = longest_prompt(self._codec.context, sampling.max_new_tokens)
        if not 0 < len(prompt_ids) <= longest:
            raise RemoteProtocolError(
                f"the run's tokenizer makes a prompt of {len(prompt_ids)} tokens, outside 1..{longest}"
            )
        turns = self._turns(task, work.prompt_seed)
        requests = tuple(
            GenerationRequest(
                prompt_ids=prompt_ids,
                seed=seed,
                max_new_tokens=sampling.max_new_tokens,
                temperature=sampling.temperature,
                stop_ids=self._codec.stop_ids,
                turns=turns,
            )
            for seed in work.sample_seeds
        )
        return SlotAssignment(slot, work.task, prompt, requests)

    def score(self, assignment: SlotAssignment, token_ids: Sequence[int]) -> Score:
        """The task's verdict on one completion; its last token says whether it finished."""
        if assignment.turns is not None:
            return assignment.turns.score(token_ids)
        return self._reward.score(assignment.task, assignment.prompt, self._decode(token_ids))

    def rewards(self, assignment: SlotAssignment, token_ids: Sequence[Sequence[int]]) -> tuple[float, ...]:
        """The run's reward of each of a slot's completions."""
        turns = assignment.turns
        if turns is not None:
            return self._reward.of_success([turns.score(ids).reward for ids in token_ids])
        completions = [self._decode(ids) for ids in token_ids]
        return self._reward.rewards(assignment.task, assignment.prompt, completions)

    def _turns(self, task: Task, seed: int) -> TurnRules | None:
        if not isinstance(task, EnvironmentTask):
            return None
        return TurnRules(task.environment, seed, self._codec, self._manifest.sampling.max_new_tokens)

    def _decode(self, token_ids: Sequence[int]) -> tuple[str, bool]:
        """Text without the stop token, and whether there was one."""
        finished = bool(token_ids) and token_ids[-1] in self._codec.stop_ids
        return self._codec.decode(token_ids[:-1] if finished else token_ids), finished

    def pack(
        self,
        assignment: SlotAssignment,
        generations: Sequence[Generation],
        *,
        version: int,
        policy: bytes,
        engine: EngineClass,
        seconds: float,
    ) -> RolloutGroup:
        """Build the group to sign and send. All of it was sampled under the declared policy, or replay would fail."""
        if len({sampled_with for generation in generations for _, sampled_with in generation.spans}) > 1:
            raise LocalProtocolError("a group cannot declare two policies: the weights were swapped during sampling")
        rewards = self.rewards(assignment, [generation.token_ids for generation in generations])
        completions = tuple(
            Completion(
                tokens=np.asarray(generation.token_ids, dtype="<u4").tobytes(),
                logprobs=np.asarray(generation.logprobs, dtype="<f2").tobytes(),
                finished=generation.finished,
                reward=reward,
            )
            for generation, reward in zip(generations, rewards, strict=True)
        )
        return RolloutGroup(
            version=version,
            policy=policy,
            slot=assignment.slot,
            task=assignment.task,
            prompt=np.asarray(assignment.requests[0].prompt_ids, dtype="<u4").tobytes(),
            completions=completions,
            engine=engine,
            seconds=seconds,
        )

    def inspect(self, group: RolloutGroup, *, peer: bytes, beacon: bytes) -> Inspection:
        """Do all checks that need no model, and recompute the rewards. The volunteer's claims are not trusted.

        A group in a slot without valid work has the wrong prompt, whatever its prompt is.
        """
        try:
            assignment = self.assign(policy=group.policy, beacon=beacon, peer=peer, slot=group.slot)
        except RemoteProtocolError:
            return Inspection(RejectionReason.WRONG_PROMPT, SlotAssignment(group.slot, group.task, "", ()), (), ())
        token_ids = tuple(
            tuple(np.frombuffer(completion.tokens, dtype="<u4").tolist()) for completion in group.completions
        )
        reason = self._fault(group, assignment, token_ids)
        sampled: tuple[tuple[bool, ...], ...] = ()
        if not reason and assignment.turns is not None:
            reason, sampled = inspect_turns(assignment.turns, group.completions, token_ids)
        rewards = () if reason else self.rewards(assignment, token_ids)
        return Inspection(reason, assignment, token_ids, rewards, sampled)

    def _fault(
        self, group: RolloutGroup, assignment: SlotAssignment, token_ids: Sequence[tuple[int, ...]]
    ) -> RejectionReason | str:
        sampling = self._manifest.sampling
        if group.task != assignment.task:
            return RejectionReason.UNKNOWN_TASK
        if tuple(np.frombuffer(group.prompt, dtype="<u4").tolist()) != assignment.requests[0].prompt_ids:
            return RejectionReason.WRONG_PROMPT
        if len(token_ids) != sampling.group_size:
            return RejectionReason.WRONG_SIZE
        stops = self._codec.stop_ids
        for ids, completion in zip(token_ids, group.completions, strict=True):
            finished = ids[-1] in stops
            if (
                max(ids) >= self._codec.vocabulary
                or len(ids) > sampling.max_new_tokens
                or (assignment.turns is None and any(token in stops for token in ids[:-1]))
                or finished != completion.finished
                or not (finished or len(ids) == sampling.max_new_tokens)
            ):
                return RejectionReason.BAD_TOKENS
        return ""


@dataclass(frozen=True, slots=True)
class SamplingTools:
    """A volunteer's tools for one run: a sampler without weights yet, and the run's slots and checks."""

    sampler: Sampler
    work: GroupWork


@dataclass(frozen=True, slots=True)
class ReplayTools:
    """The tools of a learner or a validator: a scorer without weights yet, and the run's slots and checks."""

    scorer: Scorer
    work: GroupWork
