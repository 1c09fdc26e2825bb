"""A verified group as the trainer reads it, and the tensors of a batch of groups.

Token ids and numbers stay in the arrays that view the journal's bytes until they are written into a tensor.

Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from p2prl.algorithms.step_credit import StepRewards
from p2prl.learner.training.loss_pipeline import Rollouts
from p2prl.models.logprobs.policy_forward import Row

Tokens = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingGroup:
    """A verified group."""

    prompt_ids: Tokens
    completions: tuple[Tokens, ...]
    behavior_logprobs: tuple[Floats, ...]
    """The learner's own replay at the declared version, nats at the sampling temperature. Not a number at the tokens of
    an environment, which are context and not trained on."""
    rewards: Floats
    staleness: int
    """Learner updates since the policy it was sampled with."""
    trust: float = 1.0
    """Trust of its peer, 0 to 1; below 1 the peer is on probation."""
    step_rewards: tuple[Floats, ...] = ()
    """For each token, the reward of the step that it ends, not a number at the others; the last token has the reward of
    the completion itself too. Empty where the reward judges no steps."""
    cut_off: tuple[bool, ...] = ()
    """Whether each completion reached the token limit before its end, as the learner's replay found; empty where
    nothing asks."""


def training_group(
    prompt_ids: Sequence[int],
    completions: Sequence[Sequence[int]],
    behavior_logprobs: Sequence[Sequence[float]],
    rewards: Sequence[float],
    staleness: int,
    trust: float = 1.0,
) -> TrainingGroup:
    """A group from plain numbers, as benchmarks and audits have them."""
    return TrainingGroup(
        np.asarray(prompt_ids, dtype=np.uint32),
        tuple(np.asarray(ids, dtype=np.uint32) for ids in completions),
        tuple(np.asarray(row, dtype=np.float32) for row in behavior_logprobs),
        np.asarray(rewards, dtype=np.float32),
        staleness,
        trust,
    )


def rows_of(groups: Sequence[TrainingGroup]) -> list[Row]:
    """Prompt and completion of every completion, group after group."""
    return [(group.prompt_ids, ids) for group in groups for ids in group.completions]


def longest_row(groups: Sequence[TrainingGroup]) -> int:
    """Tokens of the longest row that the model computes: the smallest micro-batch."""
    return max(len(prompt) + len(ids) - 1 for prompt, ids in rows_of(groups))


def rollouts_of(
    groups: Sequence[TrainingGroup],
    device: torch.device,
    *,
    reference_BGT: Tensor | None = None,
    credits_tokens: bool = False,
) -> Rollouts:
    """The tensors of a batch; `credits_tokens` includes the rewards of steps."""
    behavior_BGT = _padded(groups, [group.behavior_logprobs for group in groups])
    return Rollouts(
        behavior_logprobs_BGT=behavior_BGT.nan_to_num(nan=0.0, neginf=-math.inf, posinf=math.inf).to(device),
        mask_BGT=(~behavior_BGT.isnan()).to(device),
        rewards_BG=torch.from_numpy(np.stack([group.rewards for group in groups])).to(device),
        staleness_BG=torch.tensor([[group.staleness] * len(group.completions) for group in groups], device=device),
        trust_B=torch.tensor([group.trust for group in groups], device=device),
        reference_logprobs_BGT=reference_BGT,
        cut_off_BG=torch.tensor([group.cut_off or (False,) * len(group.completions) for group in groups]).to(device),
        steps=step_rewards_of(groups, device) if credits_tokens else None,
    )


def step_rewards_of(groups: Sequence[TrainingGroup], device: torch.device) -> StepRewards:
    """Step rewards of a batch. Without any, a completion is one step: its reward is on its last token."""
    rewards_BGT = _padded(groups, [group.step_rewards for group in groups])
    for b, group in enumerate(groups):
        for g, ids in enumerate(group.completions if not group.step_rewards else ()):
            rewards_BGT[b, g, len(ids) - 1] = float(group.rewards[g])
    ends_BGT = ~rewards_BGT.isnan()
    return StepRewards(rewards_BGT=rewards_BGT.nan_to_num().to(device), ends_BGT=ends_BGT.to(device))


def _padded(groups: Sequence[TrainingGroup], numbers: Sequence[Sequence[Floats]]) -> Tensor:
    """One number for each token, (B, G, T) float32; NaN where there is none."""
    longest = max(len(ids) for group in groups for ids in group.completions)
    padded = np.full((len(groups), len(groups[0].completions), longest), np.nan, dtype=np.float32)
    for b, rows in enumerate(numbers):
        for g, row in enumerate(rows):
            padded[b, g, : len(row)] = row
    return torch.from_numpy(padded)
