"""Rollout groups between the wire and tensors: what a slot asks for, how an answer is packed, how it is checked.

The volunteer builds groups with it, the learner and the validators check them with it; none of them can disagree
about what a slot means. Checking is in two parts: `inspect` needs no model (prompt, tokens, lengths, rewards), and
`replay` runs one batched prefill at the declared policy and compares every token with the slot's seeded draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from p2prl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from p2prl.models.engine_port import Engine, Generation, GenerationRequest
from p2prl.models.rewards import RunReward
from p2prl.protocol import limits
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import Completion, EngineClass, RolloutGroup
from p2prl.protocol.work_slots import SlotKey, slot_work
from p2prl.tasks.registry import task_by_name
from p2prl.tasks.task import Score, Task


class TokenCodec(Protocol):
    """Text to token ids and back; a thin face of a tokenizer."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids the model's output covers."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a completion."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Prompt text to token ids, special tokens included."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Completion token ids, without the stop token, to text. Special tokens inside stay visible."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """How far an honest engine may stray from the replay, by its word type."""

    margin: float
    """A token whose noisy logit is this far below the best one counts as mismatched, nats."""
    mismatched_share: float
    """Share of mismatched tokens above which a group fails."""
    logprob: float
    """Mean |claimed − replayed| log-prob above which a group fails, nats per token."""


TOLERANCES = {
    "float32": Tolerance(margin=1e-3, mismatched_share=0.0, logprob=0.02),
    "bfloat16": Tolerance(margin=0.1, mismatched_share=0.03, logprob=0.05),
    "float16": Tolerance(margin=0.03, mismatched_share=0.02, logprob=0.03),
}
"""In fp32 an honest margin is 0 up to rounding; in bf16 .7 % of tokens flip between engines, with margins below .1."""


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """The work of one slot, ready to decode."""

    slot: int
    task: str
    prompt: str
    requests: tuple[GenerationRequest, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """A group that could be checked without a model. `reason` is empty when nothing is wrong so far."""

    reason: str
    assignment: SlotAssignment
    token_ids: tuple[tuple[int, ...], ...]
    rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """What one prefill at the declared policy says about a group."""

    reason: str
    behavior_logprobs: tuple[tuple[float, ...], ...]
    """The policy's own log-probs of the tokens, at the sampling temperature: what the learner trains with."""
    mismatched: int
    tokens: int
    worst_margin: float


class GroupWork:
    """Slots, groups and checks of one run."""

    def __init__(self, manifest: RunManifest, run: bytes, codec: TokenCodec) -> None:
        self._manifest = manifest
        self._run = run
        self._codec = codec
        self._tasks: dict[str, Task] = {share.task: task_by_name(share.task) for share in manifest.tasks}
        try:
            self._reward = RunReward(manifest.reward, self._tasks)
        except ConfigError as error:
            raise ConfigError(
                f"this release cannot work for the run: {error}", remedy="Install the release it was made with."
            ) from error

    def assign(self, *, policy: bytes, beacon: bytes, peer: bytes, slot: int) -> SlotAssignment:
        """The one valid work of a slot. `RemoteProtocolError` when the run's files make a prompt no group may hold."""
        sampling = self._manifest.sampling
        key = SlotKey(run=self._run, beacon=beacon, policy=policy, peer=peer, slot=slot)
        work = slot_work(key, self._manifest.tasks, sampling.group_size)
        prompt = self._tasks[work.task].prompt(work.prompt_seed)
        prompt_ids = self._codec.encode(prompt)
        if not 0 < len(prompt_ids) <= limits.MAX_PROMPT_TOKENS:
            raise RemoteProtocolError(f"the run's tokenizer makes a prompt of {len(prompt_ids)} tokens")
        requests = tuple(
            GenerationRequest(
                prompt_ids=prompt_ids,
                seed=seed,
                max_new_tokens=sampling.max_new_tokens,
                temperature=sampling.temperature,
                stop_ids=self._codec.stop_ids,
            )
            for seed in work.sample_seeds
        )
        return SlotAssignment(slot, work.task, prompt, requests)

    def score(self, assignment: SlotAssignment, token_ids: Sequence[int]) -> Score:
        """The task's verdict on one completion; its last token says whether it finished."""
        return self._tasks[assignment.task].score(assignment.prompt, *self._read(token_ids))

    def rewards(self, assignment: SlotAssignment, token_ids: Sequence[Sequence[int]]) -> tuple[float, ...]:
        """What a slot's completions are worth to training, by the run's reward."""
        success = [self.score(assignment, ids).reward for ids in token_ids]
        return self._reward.of(assignment.task, assignment.prompt, [self._read(ids) for ids in token_ids], success)

    def _read(self, token_ids: Sequence[int]) -> tuple[str, bool]:
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
        """The group to sign and send. All of it was sampled under the policy it declares, or no replay would agree."""
        if len({of for generation in generations for _, of in generation.spans}) > 1:
            raise LocalProtocolError("a group cannot declare two policies: its completions were swapped half-way")
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
        """Check everything that needs no model, and recompute the rewards. Reads no claim of the volunteer."""
        assignment = self.assign(policy=group.policy, beacon=beacon, peer=peer, slot=group.slot)
        token_ids = tuple(
            tuple(np.frombuffer(completion.tokens, dtype="<u4").tolist()) for completion in group.completions
        )
        reason = self._fault(group, assignment, token_ids)
        rewards = () if reason else self.rewards(assignment, token_ids)
        return Inspection(reason, assignment, token_ids, rewards)

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
                or any(token in stops for token in ids[:-1])
                or finished != completion.finished
                or not (finished or len(ids) == sampling.max_new_tokens)
            ):
                return RejectionReason.BAD_TOKENS
        return ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a worker needs of a run: an engine without weights yet, and the meaning of the run's slots."""

    engine: Engine
    work: GroupWork


def replay_groups(engine: Engine, work: Sequence[tuple[RolloutGroup, Inspection]]) -> list[Replay]:
    """Replay groups of one policy, whose weights `engine` holds, in one batched prefill.

    The tolerance is that of the word type this engine computes in, which is the run's. The word type a group claims is
    never read: a cheat would claim the one that forgives most.
    """
    tolerance = TOLERANCES[engine.engine_class.dtype]
    requests = [request for _, inspection in work for request in inspection.assignment.requests]
    token_ids = [ids for _, inspection in work for ids in inspection.token_ids]
    scored = iter(engine.replay(requests, token_ids))
    results = []
    for group, inspection in work:
        rows = [next(scored) for _ in inspection.token_ids]
        margins = np.concatenate([np.asarray(row.margins, dtype=np.float64) for row in rows])
        behavior = tuple(tuple(row.logprobs) for row in rows)
        claimed = np.concatenate([np.frombuffer(c.logprobs, dtype="<f2").astype(np.float64) for c in group.completions])
        own = np.concatenate([np.asarray(row, dtype=np.float64) for row in behavior])
        mismatched = int(np.count_nonzero(~(margins <= tolerance.margin)))
        reason = ""
        if mismatched > tolerance.mismatched_share * margins.size:
            reason = RejectionReason.SEED_MISMATCH
        elif not float(np.mean(np.abs(claimed - own))) <= tolerance.logprob:
            reason = RejectionReason.LOGPROB_MISMATCH
        results.append(Replay(reason, behavior, mismatched, int(margins.size), float(np.max(margins))))
    return results
