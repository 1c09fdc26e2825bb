"""One learner's update and its checks, for measuring what they cost: no threads, no files, no network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from p2prl.algorithms.loss_registry import build_loss
from p2prl.bench.random_models import SHAPES, random_model
from p2prl.errors import LocalProtocolError, require
from p2prl.learner.intake.admission import Candidate, Outcome
from p2prl.learner.intake.replaying import Replayer
from p2prl.learner.journal.groups import StoredGroup
from p2prl.learner.new_run_plan import RunPlan, run_manifest
from p2prl.learner.training.local_update_engine import make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.learner.training.micro_batch_log import MicroBatchLog
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.optimizer_step import StepMemory
from p2prl.learner.training.training_group import TrainingGroup, training_group
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.groups.group_work import GroupWork, ReplayTools
from p2prl.models.logprobs.linear_head import find_linear_head
from p2prl.models.logprobs.replay_head import ReplayHead
from p2prl.models.sampling import sample_all
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import WeightLayout, flatten, layout_of
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import NO_RUN, body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.manifests import PolicyManifest, RunManifest, blob_of, chunk_bytes_for
from p2prl.protocol.rollout_group import RolloutGroup, largest_group_bytes
from p2prl.sim.machines import identity_of
from p2prl.swarm.gossip.envelope_check import check_envelope
from p2prl.swarm.policies.catalog import PolicyVersion

CACHED_SIGNATURES = 4_096
"""Signatures that `open_envelope` remembers: with fewer envelopes in turns it would verify none."""

_NOW = 1_800_000_000.0
_TASK = "chain4"


@dataclass(frozen=True, kw_only=True)
class CheckCostConfig:
    """Model and sizes."""

    model: str = "29m"
    """A name of `random_models`."""
    groups: int = 4
    """Of one update."""
    completions: int = 8
    tokens: int = 64
    """Of each completion."""
    micro_batch_tokens: int = 2_048
    """Of the update: what the memory plan takes on a processor."""
    envelopes: int = 5_000
    repeats: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        require("model", self.model, self.model in SHAPES, f"one of {', '.join(SHAPES)}")
        for name in ("groups", "tokens", "repeats", "micro_batch_tokens"):
            value = getattr(self, name)
            require(name, value, 1 <= value <= 65_536, "1 to 65536")
        require("completions", self.completions, 2 <= self.completions <= 64, "2 to 64")
        require("envelopes", self.envelopes, self.envelopes > CACHED_SIGNATURES, f"above {CACHED_SIGNATURES}")


class LearnerChecks:
    """A learner's update and checks, without its threads and files.

    Model, groups and trainer are made once and kept, because updates and checks alone are to be timed.
    """

    def __init__(self, config: CheckCostConfig) -> None:
        self._config = config
        self._learner, self._volunteer = identity_of("check cost learner"), identity_of("check cost volunteer")
        tokenizer = tiny_model(_TASK, seed=config.seed).tokenizer
        training = random_model(config.model, seed=config.seed)
        self.layout = layout_of(training, "bfloat16")
        self._manifest, self._run = self._make_run(self.layout)
        self._work = GroupWork(self._manifest, self._run, TextCodec(tokenizer, training))
        weights = bytes(flatten(training, self.layout))
        self._weights = memoryview(weights)
        self._policy = self._publish(weights)
        scored = _TimedPolicy(random_model(config.model, seed=config.seed), self.layout)
        self.head = scored.replay_head
        self._replayer = Replayer(ReplayTools(TransformersScorer(scored), self._work))
        self.load()
        self._groups = self._sample(TransformersSampler(scored))
        verified = self._verified()
        self._batch = [_training_group(outcome) for outcome in verified]
        rules = MicroBatchLog()
        rules.change(MicroBatchRule(tokens=config.micro_batch_tokens), from_step=0)
        self._trainer = make_trainer(
            training,
            LossPipeline.plain(build_loss("gepo_t")),
            OptimizerConfig(learning_rate=1e-6),
            temperature=self._manifest.sampling.temperature,
            memory=StepMemory(rules=rules),
        )

    @property
    def vocabulary(self) -> int:
        """Of the model."""
        return self._work.vocabulary

    @property
    def tokens(self) -> int:
        """Of all groups."""
        return sum(len(ids) for group in self._batch for ids in group.completions)

    def update(self) -> None:
        """One update of the learner."""
        self._trainer.update(self._batch)

    def load(self) -> None:
        """Load the policy for the replay."""
        self._replayer.policy.forget()
        self._replayer.policy.load(self._policy.digest, lambda: self._weights)

    def check(self) -> list[Outcome]:
        """Check the groups of one update, of a peer with standing."""
        return self._replayer.check([self._candidate(slot, group) for slot, group in enumerate(self._groups)])

    def arrive(self, envelopes: Sequence[bytes]) -> None:
        """What a node checks of each group before it is forwarded or stored."""
        sampling = self._manifest.sampling
        most = largest_group_bytes(sampling.group_size, sampling.max_new_tokens)
        for raw in envelopes:
            opened = open_envelope(raw, now=_NOW)
            check_envelope(opened, run=self._run, learner=self._manifest.learner, group_bytes=most)
            body_of(opened, RolloutGroup)

    def envelopes(self) -> list[bytes]:
        """Signed groups, no two alike."""
        return [
            seal(self._volunteer, _in_slot(self._groups[slot % len(self._groups)], slot), run=self._run, now=_NOW)
            for slot in range(self._config.envelopes)
        ]

    def _make_run(self, layout: WeightLayout) -> tuple[RunManifest, Digest]:
        config = self._config
        plan = RunPlan(
            name="check cost",
            goal="measure the checks",
            task=_TASK,
            model=None,
            group_size=config.completions,
            max_new_tokens=config.tokens,
            staleness_bound=8,
            publish_every=1,
            dtype="bfloat16",
            compute_dtype="float32",
            seed=config.seed,
        )
        manifest = run_manifest(plan, layout, self._learner.public_key, {"tokenizer.json": b"{}"}, now=_NOW)
        return manifest, envelope_digest(seal(self._learner, manifest, run=NO_RUN, now=_NOW))

    def _publish(self, weights: bytes) -> PolicyVersion:
        manifest = PolicyManifest(
            version=0,
            step=0,
            weights=blob_of(weights, chunk_bytes_for(len(weights))),
            weights_digest=bytes(32),
            previous=b"",
            beacon=bytes(32),
            created_ms=int(_NOW * 1000),
        )
        raw = seal(self._learner, manifest, run=self._run, now=_NOW)
        return PolicyVersion(manifest, raw, envelope_digest(raw))

    def _sample(self, sampler: TransformersSampler) -> list[RolloutGroup]:
        """One group for each slot, as a volunteer makes them."""
        groups = []
        for slot in range(self._config.groups):
            assignment = self._work.assign(
                beacon=self._policy.manifest.beacon,
                peer=self._volunteer.public_key,
                slot=slot,
            )
            made = sample_all(sampler, assignment.requests)
            group = self._work.pack(
                assignment, made, version=0, policy=self._policy.digest, engine=sampler.engine_class, seconds=1.0
            )
            groups.append(group)
        return groups

    def _candidate(self, slot: int, group: RolloutGroup) -> Candidate:
        stored = StoredGroup(
            Digest(bytes(31) + bytes([slot % 256])), self._volunteer.public_key, 0, slot, b"", b"", b""
        )
        return Candidate(stored, group, self._policy, lambda: self._weights, is_known=True)

    def _verified(self) -> list[Outcome]:
        outcomes = self.check()
        if any(outcome.state is not ReceiptState.VERIFIED for outcome in outcomes):
            raise LocalProtocolError(f"honest groups were refused: {sorted({each.reason for each in outcomes})}")
        return outcomes


class _TimedPolicy(PolicyModel):
    """A model whose head counts the time of logits."""

    @cached_property
    @torch.inference_mode()
    def replay_head(self) -> _TimedHead:
        """See `PolicyModel.replay_head`."""
        linear = find_linear_head(self.model)
        if linear is None:
            raise LocalProtocolError("the model of this measurement has no linear head")
        return _TimedHead(self.model.base_model, linear)


class _TimedHead(ReplayHead):
    """A head that counts its processor seconds."""

    def __init__(self, body: Any, linear: torch.nn.Linear) -> None:
        super().__init__(body, linear)
        self._vocabulary = linear.weight.shape[0]
        self.seconds = 0.0
        """Spent on hidden states and logits."""

    def states_before(self, prompts: Sequence[tuple[int, ...]], completions: Sequence[Sequence[int]]) -> Tensor:
        """See `ReplayHead.states_before`."""
        began = time.process_time()
        states = super().states_before(prompts, completions)
        self.seconds += time.process_time() - began
        return states

    def logits(self, states: Tensor, first: int, end: int) -> Tensor:
        """See `ReplayHead.logits`. Complete rows are those of probes, which are part of the checks."""
        began = time.process_time()
        made = super().logits(states, first, end)
        if end - first < self._vocabulary:
            self.seconds += time.process_time() - began
        return made


def _in_slot(group: RolloutGroup, slot: int) -> RolloutGroup:
    return RolloutGroup(
        version=group.version,
        policy=group.policy,
        slot=slot,
        task=group.task,
        prompt=group.prompt,
        completions=group.completions,
        engine=group.engine,
        seconds=group.seconds,
    )


def _training_group(outcome: Outcome) -> TrainingGroup:
    if outcome.replay is None:
        raise LocalProtocolError("a verified group without a replay")
    group, count = outcome.group, len(outcome.group.completions)
    return training_group(
        prompt_ids=tuple(np.frombuffer(group.prompt, dtype="<u4").tolist()),
        completions=tuple(tuple(np.frombuffer(each.tokens, dtype="<u4").tolist()) for each in group.completions),
        behavior_logprobs=outcome.replay.behavior_logprobs,
        rewards=tuple(number / count for number in range(count)),  # all differ: no row drops out of the update
        staleness=1,
    )
