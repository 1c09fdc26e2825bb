"""Rollout groups between the wire and tensors: assign a slot, pack its completions, inspect a group without a model.

Volunteers build groups with it; the learner and the validators check them with it, so all agree on the meaning of a
slot. The second half of a check, which needs a model, is `p2prl/models/replay/group_replay.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from p2prl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from p2prl.models.groups.slot_prompts import DataPrompts, PromptSource, SlotPrompt, inspect_turns, seeded_prompts
from p2prl.models.replay_statistics.baselines import KeptBaselines
from p2prl.models.rewards.run_reward import ModelJudge, RunReward, token_rewards
from p2prl.models.rewards.scoring import AnswerScorer, GroupRewards, PendingRewards, RunScoring
from p2prl.models.sampler_port import Generation, GenerationRequest, Sampler
from p2prl.models.scorer_port import Scorer
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.turns import TurnRules
from p2prl.protocol import limits
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import Completion, EngineClass, RolloutGroup
from p2prl.protocol.work_slots import SEED_RULE, SlotKey, slot_work
from p2prl.tasks.data.packed_data import Row, TaskData
from p2prl.tasks.environment import Environment

_TRIED_SLOTS = 8
"""Slots whose prompts are tried before work starts: a prompt takes a millisecond."""

_NO_DATA: Mapping[str, TaskData] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """The work of one slot, ready to sample."""

    slot: int
    task: str
    prompt: str
    """Text that a procedural task made, without the run's frame; empty for a row of data."""
    requests: tuple[GenerationRequest, ...]
    """Empty in the inspection of a slot without valid work."""
    row: int | None = None
    """Row of the task's data; None for a procedural task."""
    held_out: bool = False
    """Whether the row is one of those held out for evaluation."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt."""
        return self.requests[0].prompt_ids if self.requests else ()

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
    sampled: tuple[tuple[bool, ...], ...] = ()
    """For each token, whether the policy sampled it rather than an environment; empty in a task of one turn."""


def longest_prompt(context: int | None, max_new_tokens: int) -> int:
    """Tokens of the longest prompt that leaves room in the model's context for the longest completion."""
    return limits.MAX_PROMPT_TOKENS if context is None else min(limits.MAX_PROMPT_TOKENS, context - max_new_tokens)


class GroupWork:
    """Assigns, packs and inspects the rollout groups of one run."""

    def __init__(
        self,
        manifest: RunManifest,
        run: bytes,
        codec: TextCodec,
        data: Mapping[str, TaskData] = _NO_DATA,
        answers: AnswerScorer | None = None,
        reward_model: ModelJudge | None = None,
        environments: Mapping[str, Environment] = MappingProxyType({}),
    ) -> None:
        """`data` has the data of each data task by name; `answers` scores it, on machines that do. `reward_model` is
        the run's, on its learner's machine. `environments` are those that the run brings, by the name of the task.

        `ConfigError` when this machine lacks a task or a reward of the run. `close` it where answers are scored.
        """
        self._manifest, self._run = manifest, run
        self._codec = codec
        self._data = data
        if set(data) != {held.task for held in manifest.data_sets} or set(environments) != set(manifest.modules):
            raise LocalProtocolError("the data and environments are not those of the run's data tasks and files")
        try:
            names = [share.task for share in manifest.tasks]
            reward = RunReward(manifest.reward, names, data_tasks=data, model=reward_model, environments=environments)
        except ConfigError as error:
            raise ConfigError(
                f"this machine cannot work for the run: {error}",
                remedy="Install the release, and any task package, that the run was created with.",
            ) from error
        self._scoring = RunScoring(reward, answers, {held.task: held.scoring for held in manifest.data_sets})
        self._data_prompts = {name: DataPrompts(run, name, held) for name, held in data.items()}
        self._prompts: dict[str, PromptSource] = {
            **{
                share.task: seeded_prompts(reward.task(share.task), manifest, codec)
                for share in manifest.tasks
                if share.task not in data
            },
            **self._data_prompts,
        }

    @property
    def dtype(self) -> str:
        """The dtype the run computes in."""
        return self._manifest.engine_dtype

    @property
    def vocabulary(self) -> int:
        """Token ids of the run are below this."""
        return self._codec.vocabulary

    @property
    def group_size(self) -> int:
        """Completions of a slot."""
        return self._manifest.sampling.group_size

    @property
    def scores_data(self) -> bool:
        """Whether answers to rows of data are scored on this machine; False in a run without any."""
        return bool(self._data) and self._scoring.scores_data

    def scores(self, assignment: SlotAssignment) -> bool:
        """Whether this machine can score a slot: a data task only where its rows are and its scorers run, and with a
        reward model the learner alone."""
        name = assignment.task
        has_rows = assignment.row is None or (self.scores_data and self._data[name].training.rows is not None)
        return self._scoring.is_scored_here and has_rows

    @property
    def scorer_failures(self) -> int:
        """Answers to rows of data that could not be scored, and count 0."""
        return self._scoring.failures

    @property
    def reward_model_cut(self) -> int | None:
        """Completions that the reward model could not read to their end; None without one."""
        return self._scoring.cut

    def assign(self, *, beacon: bytes, peer: bytes, slot: int, held_out: bool = False) -> SlotAssignment:
        """The one valid work of a slot; with `held_out`, its work in an evaluation.

        `RemoteProtocolError` when it has none: its prompt does not fit the run.
        """
        key = SlotKey(run=self._run, beacon=beacon, peer=peer, slot=slot)
        work = slot_work(key, self._manifest.tasks, self.group_size)
        prompt = self._prompts[work.task].prompt(work, peer, held_out=held_out)
        return self._assignment(slot, work.task, prompt, work.sample_seeds)

    def check_prompts(self) -> None:
        """Try the prompts of some slots. `RemoteProtocolError` when most are empty or too long: the run is hopeless.

        Not at the first: a task may have a rare prompt that is too long, whose slot everybody skips.
        """
        faults: list[RemoteProtocolError] = []
        for slot in range(_TRIED_SLOTS):
            try:
                self.assign(beacon=bytes(32), peer=bytes(32), slot=slot)
            except RemoteProtocolError as error:
                faults.append(error)
        if 2 * len(faults) > _TRIED_SLOTS:
            raise RemoteProtocolError(
                f"{len(faults)} of {_TRIED_SLOTS} prompts of this run cannot be used: {faults[0]}",
                remedy="Leave this run, or tell its maker.",
            )

    def assign_row(self, task: str, row: int, *, seeds: Sequence[int], held_out: bool = True) -> SlotAssignment:
        """One completion of a row of a data task for each of `seeds`, for an evaluation. `held_out` names the split.

        `RemoteProtocolError` when the row does not fit the run, `IndexError` when there is no such row.
        """
        return self._assignment(row, task, self._data_prompts[task].row(row, held_out=held_out), seeds)

    def held_out_rows(self, task: str) -> int:
        """Rows of a task that are held out for evaluation; 0 for a procedural task, and where this machine has none."""
        data = self._data.get(task)
        return 0 if data is None or data.held_out is None else len(data.held_out.prompts)

    def _assignment(self, slot: int, task: str, prompt: SlotPrompt, seeds: Sequence[int]) -> SlotAssignment:
        sampling, prompt_ids = self._manifest.sampling, prompt.token_ids
        longest = longest_prompt(self._codec.context, sampling.max_new_tokens)
        if not 0 < len(prompt_ids) <= longest:
            made = "the run's tokenizer makes" if prompt.row is None else "the run's data has"
            raise RemoteProtocolError(f"{made} a prompt of {len(prompt_ids)} tokens, outside 1..{longest}")
        if max(prompt_ids) >= self._codec.vocabulary:
            raise RemoteProtocolError(f"a prompt of the run has token {max(prompt_ids)}, which the model lacks")
        requests = tuple(
            GenerationRequest(
                prompt_ids=prompt_ids,
                seed=seed,
                max_new_tokens=sampling.max_new_tokens,
                temperature=sampling.temperature,
                stop_ids=self._codec.stop_ids,
                turns=prompt.turns,
            )
            for seed in seeds
        )
        return SlotAssignment(slot, task, prompt.text, requests, prompt.row, prompt.held_out)

    def successes(
        self, assignment: SlotAssignment, token_ids: Sequence[Sequence[int]], *, account: bytes = b""
    ) -> tuple[float, ...]:
        """The task's verdicts on a slot's completions; the last token of each says whether it finished.

        `account` is the public key of their sampler; empty for a sample of our own.
        """
        if assignment.turns is not None:
            return tuple(assignment.turns.score(ids).reward for ids in token_ids)
        completions = [self._decode(ids) for ids in token_ids]
        if assignment.row is None:
            return tuple(self._scoring.success(assignment.task, assignment.prompt, text) for text in completions)
        return self._scoring.data_success(assignment.task, self._row(assignment), completions, account=account)

    def rewards(
        self, assignment: SlotAssignment, token_ids: Sequence[Sequence[int]], *, account: bytes = b""
    ) -> tuple[float, ...]:
        """The run's reward of each of a slot's completions. As `start_rewards`, and waits for them."""
        return self.start_rewards(assignment, token_ids, account=account)().values

    def start_rewards(
        self, assignment: SlotAssignment, token_ids: Sequence[Sequence[int]], *, account: bytes = b""
    ) -> PendingRewards:
        """Begin to score a slot's completions; start several slots before waiting for one. `account` as in `successes`.

        `IntegrityError` for a damaged row; `ConfigError` and `MachineError`, when waiting, as
        `RunScoring.start_data_rewards`.
        """
        if assignment.turns is not None:
            of_turns = self._scoring.of_success(self.successes(assignment, token_ids))
            return lambda: of_turns
        completions = [self._decode(ids) for ids in token_ids]
        read, ending = self._read(assignment)
        if assignment.row is not None:
            row, lengths = self._row(assignment), [len(ids) for ids in token_ids]
            return self._scoring.start_data_rewards(
                assignment.task, row, completions, lengths, account=account, read=read, ending=ending
            )
        rewards = self._scoring.rewards(assignment.task, assignment.prompt, completions, read=read, ending=ending)
        return lambda: rewards

    def _read(self, assignment: SlotAssignment) -> tuple[str, str]:
        """What a reward model reads around a completion: the prompt as the policy read it, and the stop token's text.
        Nothing without one."""
        if self._scoring.cut is None:
            return "", ""
        before, after = self._manifest.prompt_frame
        has_row = assignment.row is not None  # rendered when the run was made
        read = self._codec.decode(list(assignment.prompt_ids)) if has_row else before + assignment.prompt + after
        return read, self._codec.decode([min(self._codec.stop_ids)])

    def step_rewards(self, token_ids: Sequence[Sequence[int]], rewards: GroupRewards) -> tuple[tuple[float, ...], ...]:
        """For each token of a slot's completions, the reward of the step it ends, not a number at the others; together
        they are the completion's reward. Nothing where the `rewards`, which `start_rewards` gave, judge no steps."""
        return tuple(
            token_rewards(ids, self._decode(ids)[0], steps, self._codec.decode)
            for ids, steps in zip(token_ids, rewards.steps, strict=bool(rewards.steps))
        )

    def close(self) -> None:
        """End the processes that score answers and read a stranger's tokenizer."""
        self._scoring.close()
        self._codec.close()

    def _row(self, assignment: SlotAssignment) -> Row:
        rows = self._data[assignment.task].split(held_out=assignment.held_out).rows
        if rows is None or assignment.row is None:
            raise LocalProtocolError(f"this machine has no answers of {assignment.task} to score with")
        return rows.row(assignment.row)

    def texts(self, assignment: SlotAssignment, token_ids: Sequence[int]) -> tuple[str, str]:
        """A slot's prompt and one of its completions as text for people."""
        prompt = assignment.prompt or self._codec.decode(list(assignment.prompt_ids))
        return prompt, self._decode(token_ids)[0]

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
        """Build the group to sign and send. All of it was sampled under the declared policy, or replay would fail.

        Rewards that a volunteer cannot compute are claimed as 0: those of a data task, which it has no answers of, and
        those of a reward model. Nobody reads the claim.
        """
        if len({sampled_with for generation in generations for _, sampled_with in generation.spans}) > 1:
            raise LocalProtocolError("a group cannot declare two policies: the weights were swapped during sampling")
        token_ids = [generation.token_ids for generation in generations]
        is_scored = assignment.row is None and self.scores(assignment)
        rewards = self.rewards(assignment, token_ids) if is_scored else (0.0,) * len(token_ids)
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
            prompt=np.asarray(assignment.prompt_ids, dtype="<u4").tobytes(),
            completions=completions,
            engine=engine,
            seconds=seconds,
            seeds=SEED_RULE,
        )

    def inspect(self, group: RolloutGroup, *, peer: bytes, beacon: bytes) -> Inspection:
        """Do all checks that need no model. Nothing is scored: `rewards` is for groups that have passed their replay.

        A group in a slot without valid work has the wrong prompt, whatever its prompt is.
        """
        try:
            assignment = self.assign(beacon=beacon, peer=peer, slot=group.slot)
        except RemoteProtocolError:
            return Inspection(RejectionReason.WRONG_PROMPT, SlotAssignment(group.slot, group.task, "", ()), ())
        token_ids = tuple(
            tuple(np.frombuffer(completion.tokens, dtype="<u4").tolist()) for completion in group.completions
        )
        reason = self._fault(group, assignment, token_ids)
        if reason or assignment.turns is None:
            return Inspection(reason, assignment, token_ids)
        reason, sampled = inspect_turns(assignment.turns, group.completions, token_ids)
        return Inspection(reason, assignment, token_ids, sampled)

    def _fault(
        self, group: RolloutGroup, assignment: SlotAssignment, token_ids: Sequence[tuple[int, ...]]
    ) -> RejectionReason | str:
        sampling = self._manifest.sampling
        if group.task != assignment.task:
            return RejectionReason.UNKNOWN_TASK
        if tuple(np.frombuffer(group.prompt, dtype="<u4").tolist()) != assignment.prompt_ids:
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
    baselines: KeptBaselines = field(default_factory=KeptBaselines)
    """Noise of engines that groups came from, as this machine measured it."""
    replayers: int = 0
    """Processes among which the scorer deals its work; 0 where it computes itself."""
