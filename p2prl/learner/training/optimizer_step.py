"""One optimizer step from one batch of verified groups, and checkpoints that resume it exactly.

The step depends only on the batch, the weights, the recorded micro-batch rule, and the state of the optimizer and the
loss pipeline: no dropout, and random rounding by the step's number alone. So a learner that replays recorded batches
after a crash reaches the same parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from p2prl.algorithms.global_amsgrad import GlobalAmsgrad
from p2prl.algorithms.ratios import widest
from p2prl.errors import MachineError
from p2prl.learner.training.loss_pipeline import Estimate, LossPipeline, Rollouts
from p2prl.learner.training.memory_config import OptimizerStates, Precision
from p2prl.learner.training.micro_batch_log import MicroBatchLog
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.out_of_memory import LESS_MEMORY, with_smaller_micro_batches
from p2prl.learner.training.policy_gradient import backpropagate
from p2prl.learner.training.preferences import Preferences
from p2prl.learner.training.trainer_checkpoint import TrainerNumbers, load_numbers
from p2prl.learner.training.training_group import TrainingGroup, longest_row, rollouts_of, rows_of
from p2prl.learner.training.update_engine import UpdateEngine
from p2prl.learner.training.value_head import TokenValues
from p2prl.models.hardware.failures import is_out_of_memory


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMemory:
    """Number types and micro-batches of a trainer. The model must be held in `weight_dtype(precision)`."""

    precision: Precision = "fp32"
    states: OptimizerStates = "full"
    rules: MicroBatchLog = field(default_factory=MicroBatchLog)
    """Micro-batches by step; halved when memory runs out."""


class Trainer:
    """A model under training."""

    def __init__(
        self,
        engine: UpdateEngine,
        loss: LossPipeline,
        config: OptimizerConfig,
        *,
        rules: MicroBatchLog,
        preferences: Preferences | None = None,
    ) -> None:
        """`engine` computes; `rules` are the micro-batches by step; `preferences`, what is trained on beside groups."""
        self._engine = engine
        self._loss = loss
        self._config = config
        self._amsgrad = GlobalAmsgrad(beta2=config.beta2) if config.global_amsgrad else None
        self._rules = rules
        self._preferences = preferences
        self.step = 0
        self.notices: tuple[str, ...] = ()

    @property
    def model(self) -> Any:
        """The model, at the current step, as the engine holds it."""
        return self._engine.model

    @property
    def engine(self) -> UpdateEngine:
        """Weights, at the current step."""
        return self._engine

    def update(self, groups: Sequence[TrainingGroup]) -> dict[str, Any]:
        """Take one optimizer step. Returns the metrics of the update (`docs/metrics.md`)."""
        # Log-probs of every token, advantages, the loss with its guards, and its gradient, in micro-batches.
        notices: list[str] = []
        rollouts, policy_logprobs_BGT, estimate = self.gradient(groups, notices)

        # A gradient that is too large is scaled down; one that is no number ends the run before it spoils the weights.
        norms = self._engine.clip(self._config.gradient_clip)
        if not math.isfinite(float(norms.weights)):
            raise self._not_finite("the gradient")
        if norms.value is not None and not math.isfinite(float(norms.value)):
            raise self._not_finite("the value head's gradient")

        # The learning rate: as scheduled, slowed by the brakes of this batch, and by the largest gradient seen so far.
        share = self._config.rate_share(self.step)
        learning_rate = self._config.learning_rate * share * estimate.rate_factor
        amsgrad = 1.0
        if self._amsgrad is not None:
            amsgrad = float(self._amsgrad.factor(norms.weights.clamp(max=self._config.gradient_clip)))

        # AdamW on the weights; the value head and the reference policy follow.
        try:
            self._engine.step(learning_rate * amsgrad, value_factor=share * estimate.rate_factor, number=self.step)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # Some weights may have moved, so only the checkpoint and the journal can repeat this step.
            raise MachineError(f"memory ran out in the optimizer at update {self.step}", remedy=LESS_MEMORY) from error
        self.step += 1
        self.notices = (*notices, *estimate.notices)
        return _metrics(rollouts, policy_logprobs_BGT) | {
            "step": float(self.step),
            "loss": float(estimate.loss.detach()),
            "gradient_norm": float(norms.weights),
            "learning_rate": learning_rate * amsgrad,
            "amsgrad_factor": amsgrad,
            **estimate.metrics,
        }

    def gradient(
        self, groups: Sequence[TrainingGroup], notices: list[str] | None = None
    ) -> tuple[Rollouts, Tensor, Estimate]:
        """Compute the gradient of a batch in the parameters: its rollouts, policy log-probs (B, G, T) and estimate.

        When memory runs out, it begins again with half the tokens in a micro-batch, and so do all later steps.
        `notices` gets messages for the user.
        """
        before = self._loss.state()
        pairs = [] if self._preferences is None else self._preferences.of_update(self.step)

        def forget() -> None:
            self._loss.restore(before)
            self._engine.forget()

        return with_smaller_micro_batches(
            lambda rule: self._gradient_by(groups, pairs, rule),
            forget,
            self._rules,
            step=self.step,
            longest=longest_row([*groups, *pairs]),
            rows=len(groups) * len(groups[0].completions),
            notices=notices,
        )

    def _gradient_by(
        self, groups: Sequence[TrainingGroup], pairs: Sequence[TrainingGroup], rule: MicroBatchRule
    ) -> tuple[Rollouts, Tensor, Estimate]:
        rows = rows_of(groups)
        size = len(groups[0].completions)
        reference_NT = self._engine.reference_logprobs(rows, rule)
        rollouts = rollouts_of(
            groups,
            self._engine.device,
            reference_BGT=None if reference_NT is None else reference_NT.reshape(len(groups), size, -1),
            credits_tokens=self._loss.credits_tokens,
        )
        shape = rollouts.mask_BGT.shape
        self._engine.forget()

        def estimate(logprobs_NT: Tensor, values: TokenValues | None) -> Estimate:
            if not bool(torch.isfinite(logprobs_NT.detach()).all()):
                raise self._not_finite("the policy")
            shaped = None if values is None else values.shaped(shape)
            return self._loss.estimate(logprobs_NT.reshape(shape), rollouts, values=shaped)

        logprobs_NT, result = backpropagate(self._engine, rows, rule, estimate)
        if pairs:
            result = self._with_pairs(pairs, rule, result)
        return rollouts, logprobs_NT.reshape(shape), result

    def _with_pairs(self, pairs: Sequence[TrainingGroup], rule: MicroBatchRule, groups: Estimate) -> Estimate:
        """Add the gradient of the preferences to that of the groups; both as one estimate."""
        preferences = self._preferences
        assert preferences is not None
        rollouts = rollouts_of(pairs, self._engine.device)

        def estimate(logprobs_NT: Tensor, _values: TokenValues | None) -> Estimate:
            loss, figures = preferences.loss(logprobs_NT.reshape(rollouts.mask_BGT.shape), rollouts)
            return replace(groups, loss=groups.loss.detach() + loss, metrics=groups.metrics | figures)

        return backpropagate(self._engine, rows_of(pairs), rule, estimate)[1]

    def _not_finite(self, what: str) -> MachineError:
        return MachineError(
            f"{what} at update {self.step} is not finite",
            remedy="Lower learning_rate in run.toml, then start again: the run resumes before this update.",
        )

    def save(self, directory: Path, tokenizer: Any) -> None:
        """Write a checkpoint atomically."""
        amsgrad = {} if self._amsgrad is None else self._amsgrad.state()
        numbers = TrainerNumbers(step=self.step, loss=self._loss.state(), amsgrad=amsgrad)
        self._engine.save(directory, tokenizer, numbers)

    def restore(self, directory: Path) -> None:
        """Load a checkpoint except its weights, which the model already holds."""
        numbers = load_numbers(directory)
        self._engine.restore(directory)
        self._loss.restore(numbers.loss)
        if self._amsgrad is not None:
            self._amsgrad.restore(numbers.amsgrad)
        self.step = numbers.step


def _metrics(rollouts: Rollouts, policy_logprobs_BGT: Tensor) -> dict[str, float]:
    """Metrics of the batch itself, the same for every loss."""
    mask_BGT = rollouts.mask_BGT
    ratio_BGT = (policy_logprobs_BGT.detach() - rollouts.behavior_logprobs_BGT).masked_fill(~mask_BGT, 0.0)
    staleness = sorted(rollouts.staleness_BG[:, 0].tolist())
    rewards_BG = widest(rollouts.rewards_BG)
    return {
        "reward": float(rewards_BG.mean()),
        "reward_std": float(rewards_BG.std(correction=0)),
        "entropy_per_token": float(-rollouts.behavior_logprobs_BGT[mask_BGT].mean()),
        "kl_behavior_per_token": float(-ratio_BGT.sum() / mask_BGT.sum()),
        "completion_tokens_mean": float(mask_BGT.sum() / mask_BGT[..., 0].numel()),
        "staleness_p50": float(staleness[len(staleness) // 2]),
        "staleness_p95": float(staleness[min(len(staleness) - 1, math.ceil(0.95 * len(staleness)) - 1)]),
        "staleness_max": float(staleness[-1]),
    }
