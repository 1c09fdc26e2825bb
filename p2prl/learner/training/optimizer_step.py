"""One optimizer step from one batch of verified groups, and checkpoints that resume it exactly.

The step depends only on the batch, the weights, and the state of the optimizer and the loss pipeline: no dropout, no
random draw. So a learner that replays recorded batches after a crash reaches the same parameters.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from p2prl.algorithms.ratios import widest
from p2prl.disk_full import write_error
from p2prl.errors import MachineError, require
from p2prl.learner.training.loss_pipeline import LossPipeline, Rollouts
from p2prl.learner.training.reference_policy import Reference, ReferenceConfig
from p2prl.models.policy_logprobs import completion_logprobs

_REFERENCE_FILE = "reference.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """AdamW and its learning-rate schedule."""

    learning_rate: float = 5e-4
    """Peak learning rate. 5e-4 suits the 59k-parameter chain4 model; use 1e-6 for billions of parameters."""
    beta1: float = 0.9
    """Decay of the gradient's running mean, per update."""
    beta2: float = 0.99
    """Decay of the squared gradient's running mean, per update. Less than the usual .999: off-policy gradients change
    direction faster."""
    weight_decay: float = 0.0
    """Decoupled weight decay, as a factor on the learning rate; 0 for none."""
    warmup_updates: int = 10
    """Updates over which the learning rate rises linearly, while Adam's second moment is still inaccurate."""
    gradient_clip: float = 1.0
    """Largest gradient norm; a larger gradient is scaled down to it."""

    def __post_init__(self) -> None:
        require("learning_rate", self.learning_rate, 0.0 < self.learning_rate < math.inf, "above 0")
        require("beta1", self.beta1, 0.0 <= self.beta1 < 1.0, "within 0..1, 1 excluded")
        require("beta2", self.beta2, 0.0 <= self.beta2 < 1.0, "within 0..1, 1 excluded")
        require("weight_decay", self.weight_decay, 0.0 <= self.weight_decay < math.inf, "0 or more")
        require("warmup_updates", self.warmup_updates, self.warmup_updates >= 0, "0 or more")
        require("gradient_clip", self.gradient_clip, 0.0 < self.gradient_clip < math.inf, "above 0")


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """A verified group as the trainer reads it."""

    prompt_ids: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]
    behavior_logprobs: tuple[tuple[float, ...], ...]
    """The learner's own replay at the declared version, nats at the sampling temperature."""
    rewards: tuple[float, ...]
    staleness: int
    """Learner updates since the policy it was sampled with."""
    trust: float = 1.0
    """Trust of its peer, 0 to 1; below 1 the peer is on probation."""


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
    ) -> None:
        # Never in training mode: dropout would draw random numbers that a replay after a crash could not reproduce.
        self._model = model.eval()
        self._loss = loss
        self._reference = None if reference is None else Reference(model, reference)
        self._config = config
        self._temperature = temperature
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
            foreach=False,  # one summation order on every machine and every build
        )
        self.step = 0
        self.notices: tuple[str, ...] = ()

    @property
    def model(self) -> Any:
        """The model, at the current step."""
        return self._model

    def update(self, groups: Sequence[TrainingGroup]) -> dict[str, Any]:
        """Take one optimizer step. Returns the metrics of the update (`docs/metrics.md`)."""
        prompts = [group.prompt_ids for group in groups for _ in group.completions]
        completions = [ids for group in groups for ids in group.completions]
        rollouts = self._rollouts(groups, prompts, completions)
        learning_rate = self._config.learning_rate * min(1.0, (self.step + 1) / max(1, self._config.warmup_updates))
        self._optimizer.zero_grad(set_to_none=True)
        flat_logprobs, _ = completion_logprobs(self._model, prompts, completions, self._temperature)
        policy_logprobs_BGT = flat_logprobs.reshape(rollouts.mask_BGT.shape)
        if not bool(torch.isfinite(policy_logprobs_BGT.detach()).all()):
            raise self._not_finite("the policy")
        estimate = self._loss.estimate(policy_logprobs_BGT, rollouts)
        estimate.loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.gradient_clip)
        if not math.isfinite(float(norm)):
            raise self._not_finite("the gradient")
        learning_rate *= estimate.rate_factor
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        if self._reference is not None:
            self._reference.follow(self._parameters)
        self.step += 1
        self.notices = estimate.notices
        return _metrics(rollouts, policy_logprobs_BGT) | {
            "step": float(self.step),
            "loss": float(estimate.loss.detach()),
            "gradient_norm": float(norm),
            "learning_rate": learning_rate,
            **estimate.metrics,
        }

    def _not_finite(self, what: str) -> MachineError:
        return MachineError(
            f"{what} at update {self.step} is not finite",
            remedy="Lower learning_rate in run.toml, then start again: the run resumes before this update.",
        )

    def save(self, directory: Path, tokenizer: Any) -> None:
        """Write a checkpoint atomically: a Hugging Face model directory with the optimizer state."""
        new = directory.with_name(directory.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        try:
            self._model.save_pretrained(new, safe_serialization=True)
            tokenizer.save_pretrained(new)
            save_file(self._optimizer_tensors(), new / "optimizer.safetensors")
            if self._reference is not None:
                save_file(self._reference.tensors(), new / _REFERENCE_FILE)
            (new / "trainer.json").write_text(json.dumps({"step": self.step, "estimator": self._loss.state()}))
            for path in new.iterdir():
                _sync(path)
            shutil.rmtree(directory, ignore_errors=True)
            new.rename(directory)
            _sync(directory.parent)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(new, ignore_errors=True)  # an unfinished checkpoint occupies space the journal needs
            raise write_error(
                error, f"the checkpoint {directory}", kept="training resumes from the last checkpoint and the journal"
            ) from error

    def restore(self, directory: Path) -> None:
        """Load a checkpoint except its weights, which the model already holds.

        A checkpoint written without a reference leaves the reference at those weights.
        """
        tensors = load_file(directory / "optimizer.safetensors")
        for index, parameter in enumerate(self._parameters):
            state = self._optimizer.state[parameter]
            if f"{index}.step" in tensors:
                state["step"] = tensors[f"{index}.step"]
                state["exp_avg"] = tensors[f"{index}.exp_avg"].to(parameter.device)
                state["exp_avg_sq"] = tensors[f"{index}.exp_avg_sq"].to(parameter.device)
        if self._reference is not None and (directory / _REFERENCE_FILE).exists():
            self._reference.restore(load_file(directory / _REFERENCE_FILE))
        state = json.loads((directory / "trainer.json").read_text())
        self._loss.restore(state.get("estimator", {}))
        self.step = int(state["step"])

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for index, parameter in enumerate(self._parameters):
            for name, value in self._optimizer.state[parameter].items():
                tensors[f"{index}.{name}"] = value.detach().cpu().contiguous()
        return tensors

    def _rollouts(
        self,
        groups: Sequence[TrainingGroup],
        prompts: Sequence[tuple[int, ...]],
        completions: Sequence[tuple[int, ...]],
    ) -> Rollouts:
        device = self._parameters[0].device
        size = len(groups[0].completions)
        longest = max(len(ids) for ids in completions)
        behavior_BGT = torch.zeros(len(groups), size, longest)
        mask_BGT = torch.zeros(len(groups), size, longest, dtype=torch.bool)
        for b, group in enumerate(groups):
            for g, logprobs in enumerate(group.behavior_logprobs):
                behavior_BGT[b, g, : len(logprobs)] = torch.tensor(logprobs)
                mask_BGT[b, g, : len(logprobs)] = True
        reference_BGT = None
        if self._reference is not None:
            reference_BGT = self._reference.logprobs(prompts, completions, self._temperature).reshape(mask_BGT.shape)
        return Rollouts(
            behavior_logprobs_BGT=behavior_BGT.to(device),
            mask_BGT=mask_BGT.to(device),
            rewards_BG=torch.tensor([group.rewards for group in groups], device=device),
            staleness_BG=torch.tensor([[group.staleness] * size for group in groups], device=device),
            trust_B=torch.tensor([group.trust for group in groups], device=device),
            reference_logprobs_BGT=reference_BGT,
        )


def _metrics(rollouts: Rollouts, policy_logprobs_BGT: Tensor) -> dict[str, float]:
    """Metrics of the batch itself, the same for every loss."""
    mask_BGT = rollouts.mask_BGT
    ratio_BGT = (policy_logprobs_BGT.detach() - rollouts.behavior_logprobs_BGT).masked_fill(~mask_BGT, 0.0)
    staleness = sorted(rollouts.staleness_BG[:, 0].tolist())
    return {
        "reward": float(widest(rollouts.rewards_BG).mean()),
        "kl_behavior_per_token": float(-ratio_BGT.sum() / mask_BGT.sum()),
        "completion_tokens_mean": float(mask_BGT.sum() / mask_BGT[..., 0].numel()),
        "staleness_p50": float(staleness[len(staleness) // 2]),
        "staleness_p95": float(staleness[min(len(staleness) - 1, math.ceil(0.95 * len(staleness)) - 1)]),
        "staleness_max": float(staleness[-1]),
    }


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
