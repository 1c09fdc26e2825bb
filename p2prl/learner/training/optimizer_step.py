"""One optimizer step from one batch of verified groups, and checkpoints that resume it exactly.

The step depends only on the batch, the weights, the recorded micro-batch rule, and the state of the optimizer and the
loss pipeline: no dropout, and random rounding by the step's number alone. So a learner that replays recorded batches
after a crash reaches the same parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
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
from p2prl.learner.training.policy_gradient import BatchLogprobs
from p2prl.learner.training.reference_policy import Reference, ReferenceConfig
from p2prl.learner.training.trainer_checkpoint import TrainerState, load_checkpoint, save_checkpoint
from p2prl.learner.training.training_group import TrainingGroup, longest_row, rollouts_of, rows_of
from p2prl.learner.training.value_head import TokenValues, ValueHead
from p2prl.learner.training.weight_optimizer import OptimizerConfig, WeightOptimizer
from p2prl.models.hardware.failures import is_out_of_memory, release_memory

_LESS_MEMORY = (
    'Set checkpointing = "on" in [learner.memory] of run.toml, free some memory, or train on a larger device; the run'
    " resumes before this update."
)


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
        model: Any,
        loss: LossPipeline,
        config: OptimizerConfig,
        *,
        temperature: float,
        reference: ReferenceConfig | None = None,
        memory: StepMemory | None = None,
    ) -> None:
        # Never in training mode: dropout would draw random numbers that a replay after a crash could not reproduce.
        self._model = model.eval()
        self._loss = loss
        self._config = config
        memory = memory or StepMemory()
        autocast = torch.bfloat16 if memory.precision == "bf16" else None
        self._value = None
        if loss.value is not None:
            hidden = model.config.get_text_config().hidden_size
            self._value = ValueHead(hidden, loss.value, next(model.parameters()).device)
        self._policy = BatchLogprobs(model, temperature=temperature, autocast=autocast, value=self._value)
        self._reference = None
        if reference is not None:
            self._reference = Reference(model, reference, temperature=temperature, autocast=autocast)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = WeightOptimizer(self._parameters, config, precision=memory.precision, states=memory.states)
        self._amsgrad = GlobalAmsgrad(beta2=config.beta2) if config.global_amsgrad else None
        self._rules = memory.rules
        self.step = 0
        self.notices: tuple[str, ...] = ()

    @property
    def model(self) -> Any:
        """The model, at the current step."""
        return self._model

    def update(self, groups: Sequence[TrainingGroup]) -> dict[str, Any]:
        """Take one optimizer step. Returns the metrics of the update (`docs/metrics.md`)."""
        # Log-probs of every token, advantages, the loss with its guards, and its gradient, in micro-batches.
        notices: list[str] = []
        rollouts, policy_logprobs_BGT, estimate = self.gradient(groups, notices)

        # A gradient that is too large is scaled down; one that is no number ends the run before it spoils the weights.
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.gradient_clip)
        if not math.isfinite(float(norm)):
            raise self._not_finite("the gradient")
        if self._value is not None:
            value_norm = torch.nn.utils.clip_grad_norm_(self._value.parameters, self._config.gradient_clip)
            if not math.isfinite(float(value_norm)):
                raise self._not_finite("the value head's gradient")

        # The learning rate: warmed up, slowed by the brakes of this batch, and by the largest gradient seen so far.
        warm = min(1.0, (self.step + 1) / max(1, self._config.warmup_updates))
        learning_rate = self._config.learning_rate * warm * estimate.rate_factor
        amsgrad = 1.0
        if self._amsgrad is not None:
            amsgrad = float(self._amsgrad.factor(norm.clamp(max=self._config.gradient_clip)))

        # AdamW on the weights; the value head and the reference policy follow.
        try:
            self._optimizer.step(learning_rate * amsgrad, number=self.step)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # Some weights may have moved, so only the checkpoint and the journal can repeat this step.
            raise MachineError(f"memory ran out in the optimizer at update {self.step}", remedy=_LESS_MEMORY) from error
        if self._value is not None:
            self._value.step(warm * estimate.rate_factor)
        self._zero_gradients()
        if self._reference is not None:
            self._reference.follow(self._parameters)
        self.step += 1
        self.notices = (*notices, *estimate.notices)
        return _metrics(rollouts, policy_logprobs_BGT) | {
            "step": float(self.step),
            "loss": float(estimate.loss.detach()),
            "gradient_norm": float(norm),
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
        while True:
            rule = self._rules.at(self.step)
            before = self._loss.state()
            try:
                return self._gradient_by(groups, rule)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if rule.tokens <= longest_row(groups):
                    raise MachineError(
                        f"memory ran out at update {self.step} with a single completion", remedy=_LESS_MEMORY
                    ) from error
            # Outside of the handler, whose traceback holds the tensors of the failed attempt.
            self._loss.restore(before)
            self._zero_gradients()
            release_memory()
            rule = rule.halved(used=longest_row(groups) * len(groups) * len(groups[0].completions))
            self._rules.change(rule, from_step=self.step)
            if notices is not None:
                notices.append(f"memory ran out; micro-batches have up to {rule.tokens:,} tokens from now on")

    def _gradient_by(self, groups: Sequence[TrainingGroup], rule: MicroBatchRule) -> tuple[Rollouts, Tensor, Estimate]:
        rows = rows_of(groups)
        size = len(groups[0].completions)
        reference_BGT = None
        if self._reference is not None:
            reference_BGT = self._reference.logprobs(rows, rule).reshape(len(groups), size, -1)
        device = self._parameters[0].device
        rollouts = rollouts_of(groups, device, reference_BGT=reference_BGT, credits_tokens=self._loss.credits_tokens)
        shape = rollouts.mask_BGT.shape
        self._zero_gradients()

        def estimate(logprobs_NT: Tensor, values: TokenValues | None) -> Estimate:
            if not bool(torch.isfinite(logprobs_NT.detach()).all()):
                raise self._not_finite("the policy")
            shaped = None if values is None else values.shaped(shape)
            return self._loss.estimate(logprobs_NT.reshape(shape), rollouts, values=shaped)

        logprobs_NT, result = self._policy.backward(rows, rule, estimate)
        return rollouts, logprobs_NT.reshape(shape), result

    def _zero_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        if self._value is not None:
            self._value.zero_gradients()

    def _not_finite(self, what: str) -> MachineError:
        return MachineError(
            f"{what} at update {self.step} is not finite",
            remedy="Lower learning_rate in run.toml, then start again: the run resumes before this update.",
        )

    def save(self, directory: Path, tokenizer: Any) -> None:
        """Write a checkpoint atomically."""
        state = TrainerState(
            step=self.step,
            loss=self._loss.state(),
            amsgrad={} if self._amsgrad is None else self._amsgrad.state(),
            optimizer=self._optimizer.tensors(),
            reference=None if self._reference is None else self._reference.tensors(),
            value=None if self._value is None else self._value.tensors(),
        )
        save_checkpoint(directory, self._model, tokenizer, state)

    def restore(self, directory: Path) -> None:
        """Load a checkpoint except its weights, which the model already holds.

        A checkpoint written without a reference leaves the reference at those weights, and one without a value head
        leaves that at zero.
        """
        state = load_checkpoint(directory)
        self._optimizer.restore(state.optimizer)
        if self._reference is not None and state.reference is not None:
            self._reference.restore(state.reference)
        if self._value is not None and state.value is not None:
            self._value.restore(state.value)
        self._loss.restore(state.loss)
        if self._amsgrad is not None:
            self._amsgrad.restore(state.amsgrad)
        self.step = state.step


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
