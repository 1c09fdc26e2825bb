"""One optimiser step from one batch of verified groups, and checkpoints that resume it exactly.

The step depends on nothing but the batch, the weights and the optimiser's state: no dropout, no random draw. That is
what lets the learner replay recorded batches after a crash and arrive at the same parameters.
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

from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.registry import Objective
from p2prl.errors import MachineError, require
from p2prl.models.policy import completion_logprobs


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimiserConfig:
    """AdamW and its schedule."""

    learning_rate: float = 5e-4
    """Peak learning rate. 5e-4 suits the 59k-parameter chain4 model; billions of parameters want 1e-6."""
    beta1: float = 0.9
    beta2: float = 0.99
    """Shorter memory than the usual .999: off-policy gradients change direction faster."""
    weight_decay: float = 0.0
    warmup_updates: int = 10
    """Updates over which the learning rate rises linearly, while Adam's second moment is still a guess."""
    gradient_clip: float = 1.0
    """Largest gradient norm."""

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


class Trainer:
    """A model under training."""

    def __init__(self, model: Any, objective: Objective, config: OptimiserConfig, *, temperature: float) -> None:
        # Never in training mode: dropout would draw random numbers that a replay after a crash could not repeat.
        self._model = model.eval()
        self._objective = objective
        self._config = config
        self._temperature = temperature
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimiser = torch.optim.AdamW(
            self._parameters,
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
            foreach=False,  # one summation order on every machine and every build
        )
        self.step = 0

    @property
    def model(self) -> Any:
        """The model, at the current step."""
        return self._model

    def update(self, groups: Sequence[TrainingGroup]) -> dict[str, float]:
        """One optimiser step. Returns the metrics of the update (`docs/metrics.md`)."""
        batch, prompts, completions = self._batch(groups)
        learning_rate = self._config.learning_rate * min(1.0, (self.step + 1) / max(1, self._config.warmup_updates))
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        self._optimiser.zero_grad(set_to_none=True)
        flat_logprobs, _ = completion_logprobs(self._model, prompts, completions, self._temperature)
        policy_logprobs_BGT = flat_logprobs.reshape(batch.mask_BGT.shape)
        if not bool(torch.isfinite(policy_logprobs_BGT.detach()).all()):
            raise self._diverged("the policy")
        output = self._objective.loss(policy_logprobs_BGT, batch)
        output.loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.gradient_clip)
        if not math.isfinite(float(norm)):
            raise self._diverged("the gradient")
        self._optimiser.step()
        self.step += 1
        return self._metrics(output, batch, policy_logprobs_BGT, groups, float(norm), learning_rate)

    def _diverged(self, what: str) -> MachineError:
        return MachineError(
            f"{what} at update {self.step} is not finite",
            remedy="Lower learning_rate in run.toml, then start again: the run resumes before this update.",
        )

    def save(self, directory: Path, tokenizer: Any) -> None:
        """Write a checkpoint: a Hugging Face model directory with the optimiser beside it, complete or not at all."""
        new = directory.with_name(directory.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        try:
            self._model.save_pretrained(new, safe_serialization=True)
            tokenizer.save_pretrained(new)
            save_file(self._optimiser_tensors(), new / "optimizer.safetensors")
            (new / "trainer.json").write_text(json.dumps({"step": self.step}))
            for path in new.iterdir():
                _sync(path)
            shutil.rmtree(directory, ignore_errors=True)
            new.rename(directory)
            _sync(directory.parent)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(new, ignore_errors=True)  # what there is of it takes the room the journal needs
            raise MachineError(
                f"cannot write the checkpoint {directory}: {error}",
                remedy="Free some space and start again; training resumes from the last checkpoint and the journal.",
            ) from error

    def restore(self, directory: Path) -> None:
        """Take the optimiser's state and the step of a checkpoint whose weights the model already holds."""
        tensors = load_file(directory / "optimizer.safetensors")
        for index, parameter in enumerate(self._parameters):
            state = self._optimiser.state[parameter]
            if f"{index}.step" in tensors:
                state["step"] = tensors[f"{index}.step"]
                state["exp_avg"] = tensors[f"{index}.exp_avg"].to(parameter.device)
                state["exp_avg_sq"] = tensors[f"{index}.exp_avg_sq"].to(parameter.device)
        self.step = int(json.loads((directory / "trainer.json").read_text())["step"])

    def _optimiser_tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for index, parameter in enumerate(self._parameters):
            for name, value in self._optimiser.state[parameter].items():
                tensors[f"{index}.{name}"] = value.detach().cpu().contiguous()
        return tensors

    def _batch(
        self, groups: Sequence[TrainingGroup]
    ) -> tuple[RolloutBatch, list[tuple[int, ...]], list[tuple[int, ...]]]:
        device = self._parameters[0].device
        size = len(groups[0].completions)
        longest = max(len(ids) for group in groups for ids in group.completions)
        behavior_BGT = torch.zeros(len(groups), size, longest)
        mask_BGT = torch.zeros(len(groups), size, longest, dtype=torch.bool)
        for b, group in enumerate(groups):
            for g, logprobs in enumerate(group.behavior_logprobs):
                behavior_BGT[b, g, : len(logprobs)] = torch.tensor(logprobs)
                mask_BGT[b, g, : len(logprobs)] = True
        rewards_BG = torch.tensor([group.rewards for group in groups])
        advantages = self._objective.advantages(rewards_BG, mask_BGT.sum(dim=-1))
        batch = RolloutBatch(
            behavior_logprobs_BGT=behavior_BGT.to(device),
            mask_BGT=mask_BGT.to(device),
            advantages_BG=advantages.advantages_BG.to(device),
            staleness_BG=torch.tensor([[group.staleness] * size for group in groups], device=device),
        )
        prompts = [group.prompt_ids for group in groups for _ in group.completions]
        completions = [ids for group in groups for ids in group.completions]
        return batch, prompts, completions

    def _metrics(
        self,
        output: LossOutput,
        batch: RolloutBatch,
        policy_logprobs_BGT: Tensor,
        groups: Sequence[TrainingGroup],
        gradient_norm: float,
        learning_rate: float,
    ) -> dict[str, float]:
        mask_BGT = batch.mask_BGT
        ratio_BGT = (policy_logprobs_BGT.detach() - batch.behavior_logprobs_BGT).masked_fill(~mask_BGT, 0.0)
        rewards = [reward for group in groups for reward in group.rewards]
        staleness = sorted(group.staleness for group in groups)
        return {
            "step": float(self.step),
            "loss": float(output.loss.detach()),
            "reward": sum(rewards) / len(rewards),
            "gradient_norm": gradient_norm,
            "learning_rate": learning_rate,
            "kl_behavior_per_token": float(-ratio_BGT.sum() / mask_BGT.sum()),
            "completion_tokens_mean": float(mask_BGT.sum() / mask_BGT[..., 0].numel()),
            "staleness_p50": float(staleness[len(staleness) // 2]),
            "staleness_p95": float(staleness[min(len(staleness) - 1, math.ceil(0.95 * len(staleness)) - 1)]),
            "staleness_max": float(staleness[-1]),
            **{f"loss/{name}": float(value) for name, value in output.metrics.items()},
        }


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
