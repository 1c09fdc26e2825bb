"""On-policy training of one recipe, several seeds side by side: PPO with a value head, DPO, or a group loss.

The seed fixes all randomness: two recipes on one seed see the same prompts of a batch and the same noise.

Shape legend: M seeds, B prompts, G completions, T tokens, W weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from p2prl.algorithms.advantages import whiten
from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.guards import ema_update
from p2prl.algorithms.kl_penalty import reference_penalty
from p2prl.algorithms.ppo import gae, value_loss
from p2prl.algorithms.process_rewards import RewardConfig
from p2prl.algorithms.step_credit import StepRewards, step_advantages
from p2prl.errors import require
from p2prl_lab.bench.comparison.recipes import Recipe
from p2prl_lab.bench.training.environments import Environment
from p2prl_lab.bench.training.grading import Grades, grade
from p2prl_lab.bench.training.seeded_noise import seeded_uniforms
from p2prl_lab.bench.training.stacked_adam import StackedAdam
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs, completion_values
from p2prl_lab.bench.training.stacked_sampling import Completions, sample
from p2prl_lab.bench.training.training_plan import FINAL_EVALUATIONS, TrainingPlan
from p2prl_lab.bench.training.warm_start import SEED_LIMIT

RESULT_VERSION = 1
"""Incremented when a change here, or in code all recipes share, affects figures: older results are not reused."""

_GROUP = 8
_WARMUP_STEPS = 10
_EVALUATION_CHUNK = 256
_SEEDS_PER_RUN = 1 << 40
_SEEDS_PER_UPDATE = 1 << 16
_EVALUATION_SEEDS = 1 << 62
_SAMPLING, _EVALUATING = range(2)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation on fresh prompts, one sampled completion each."""

    update: int
    """Batches trained on before it."""
    success: float
    """Share of right answers."""
    tokens: float
    """Mean length of a completion."""
    true_steps: float
    """Mean number of steps the scorer accepts: the raw process reward."""
    readable: float
    """Share of completions that finish and that the scorer's grammar accepts."""


@dataclass(frozen=True, kw_only=True)
class RecipeResult:
    """Result of one seed."""

    seed: int
    curve: tuple[Evaluation, ...]
    """From update 0."""
    grad_norm_max: float
    """Largest gradient norm before the clip."""

    def last(self, figure: str) -> float:
        """Mean of a field of `Evaluation` over the last three evaluations."""
        return (
            sum(float(getattr(evaluation, figure)) for evaluation in self.curve[-FINAL_EVALUATIONS:])
            / FINAL_EVALUATIONS
        )

    @property
    def best(self) -> float:
        """Success at its best evaluation."""
        return max(evaluation.success for evaluation in self.curve)


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Data shared by the optimizer steps on one batch."""

    prompts_MBP: Tensor
    completions: Completions
    rollouts: list[RolloutBatch]
    """One per seed."""
    old_values_MBGT: Tensor | None
    returns_MBGT: Tensor | None


class OnPolicyTraining:
    """Several seeds of one recipe, trained update by update."""

    def __init__(
        self,
        environment: Environment,
        recipe: Recipe,
        reward: RewardConfig,
        plan: TrainingPlan,
        seeds: Sequence[int],
        start_MW: Tensor,
    ) -> None:
        """`start_MW` are policies without a value head; a recipe with one starts from a head of zeros."""
        for seed in seeds:
            require("seed", seed, 0 <= seed < SEED_LIMIT, f"0 to {SEED_LIMIT - 1}")
        self._shape = replace(environment.shape, value_head=recipe.has_value)
        self._environment, self._recipe, self._reward, self._plan = environment, recipe, reward, plan
        self._seeds = tuple(seeds)
        head_MW = start_MW.new_zeros(len(seeds), self._shape.size() - start_MW.shape[1])
        self._start_MW = torch.cat([start_MW, head_MW], dim=1)
        self._reference_MW = self._start_MW.clone()
        self._weights_MW = self._start_MW.clone().requires_grad_()
        self._optimizer = StackedAdam.fresh(self._start_MW)
        self._curves: list[list[Evaluation]] = [[] for _ in seeds]
        self._grad_norms: list[Tensor] = []

    def run(self, *, on_progress: Callable[[float], None] | None = None) -> list[RecipeResult]:
        """Train to the end of the plan; one result for each seed, in the order given."""
        self._evaluate(0)
        for update in range(self._plan.updates):
            batch = self._batch(update)
            for _ in range(self._recipe.passes):
                self._step(batch)
            if self._recipe.reference == "ema":
                ema_update([self._reference_MW], [self._weights_MW], rate=self._recipe.rate)
            if (update + 1) % self._plan.evaluate_every == 0:
                self._evaluate(update + 1)
            if on_progress is not None:
                on_progress((update + 1) / self._plan.updates)
        norms_SM = torch.stack(self._grad_norms)
        return [
            RecipeResult(seed=seed, curve=tuple(self._curves[index]), grad_norm_max=float(norms_SM[:, index].max()))
            for index, seed in enumerate(self._seeds)
        ]

    def _batch(self, update: int) -> _Batch:
        """Sample and grade a batch, and compute the data shared by its passes."""
        recipe, first = self._recipe, update * _SEEDS_PER_UPDATE
        prompts = self._prompts([seed * _SEEDS_PER_RUN + first for seed in self._seeds], recipe.prompts)
        prompts_MBP = self._tokens(prompts)
        sampler_MW = self._start_MW if recipe.samples == "start" else self._weights_MW.detach()
        completions = self._sample(sampler_MW, prompts_MBP, _GROUP, _SAMPLING, update)
        grades = grade(self._environment, prompts, completions)
        old_values_MBGT = returns_MBGT = advantages_MBGT = None
        if recipe.has_value:
            with torch.no_grad():
                scored = completion_values(self._shape, self._weights_MW, prompts_MBP, completions.tokens_MBGT)
            old_values_MBGT = scored[1]
            advantages_MBGT, returns_MBGT = self._credit(grades, completions, old_values_MBGT)
        return _Batch(
            prompts_MBP=prompts_MBP,
            completions=completions,
            rollouts=self._rollouts(prompts_MBP, completions, grades, advantages_MBGT),
            old_values_MBGT=old_values_MBGT,
            returns_MBGT=returns_MBGT,
        )

    def _credit(self, grades: Grades, completions: Completions, values_MBGT: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages and returns of every token, (M, B, G, T)."""
        rewards_MBGT = grades.token_rewards(self._reward, completions.mask_MBGT)
        advantages_NGT, returns_NGT = gae(
            rewards_MBGT.flatten(0, 1),
            values_MBGT.flatten(0, 1),
            completions.mask_MBGT.flatten(0, 1),
            self._recipe.value,
        )
        advantages_MBGT = advantages_NGT.view_as(values_MBGT)
        if self._recipe.normalise:
            pairs = zip(advantages_MBGT, completions.mask_MBGT, strict=True)
            advantages_MBGT = torch.stack([whiten(advantages, mask) for advantages, mask in pairs])
        return advantages_MBGT, returns_NGT.view_as(values_MBGT)

    def _step_credit(self, grades: Grades, completions: Completions) -> Tensor:
        """Advantages of every token from the rewards of the steps, (M, B, G, T)."""
        mask_MBGT, kind = completions.mask_MBGT, self._recipe.objective.advantage
        rewards_MBGT, ends_MBGT = grades.token_rewards(self._reward, mask_MBGT), grades.step_ends(mask_MBGT)
        steps = StepRewards(rewards_BGT=rewards_MBGT.flatten(0, 1), ends_BGT=ends_MBGT.flatten(0, 1))
        return step_advantages(steps, mask_MBGT.flatten(0, 1), kind).view_as(rewards_MBGT)

    def _rollouts(
        self, prompts_MBP: Tensor, completions: Completions, grades: Grades, advantages_MBGT: Tensor | None
    ) -> list[RolloutBatch]:
        recipe, reference_MBGT = self._recipe, None
        if recipe.reference != "none":
            with torch.no_grad():
                reference_MBGT = completion_logprobs(
                    self._shape, self._reference_MW, prompts_MBP, completions.tokens_MBGT
                )
        if recipe.credit == "step":
            advantages_MBGT = self._step_credit(grades, completions)
        rewards_MBG = grades.completion_rewards(self._reward)
        rollouts = []
        for index, mask_BGT in enumerate(completions.mask_MBGT):
            advantages = recipe.objective.advantages(rewards_MBG[index], mask_BGT.sum(dim=-1))
            rollouts.append(
                RolloutBatch(
                    behavior_logprobs_BGT=completions.logprobs_MBGT[index],
                    mask_BGT=mask_BGT,
                    advantages_BG=advantages.advantages_BG,
                    token_advantages_BGT=None if advantages_MBGT is None else advantages_MBGT[index],
                    staleness_BG=torch.zeros(mask_BGT.shape[:2], dtype=torch.int64),
                    reference_logprobs_BGT=None if reference_MBGT is None else reference_MBGT[index],
                )
            )
        return rollouts

    def _step(self, batch: _Batch) -> None:
        """One optimizer step on the whole batch."""
        recipe, tokens_MBGT = self._recipe, batch.completions.tokens_MBGT
        values_MBGT = None
        if recipe.has_value:
            logprobs_MBGT, values_MBGT = completion_values(
                self._shape, self._weights_MW, batch.prompts_MBP, tokens_MBGT
            )
        else:
            logprobs_MBGT = completion_logprobs(self._shape, self._weights_MW, batch.prompts_MBP, tokens_MBGT)
        losses = []
        for index, rollouts in enumerate(batch.rollouts):
            loss = recipe.objective.loss(logprobs_MBGT[index], rollouts).loss
            if values_MBGT is not None and batch.old_values_MBGT is not None and batch.returns_MBGT is not None:
                loss = loss + recipe.value_weight * value_loss(
                    values_MBGT[index],
                    batch.old_values_MBGT[index],
                    batch.returns_MBGT[index],
                    rollouts.mask_BGT,
                    recipe.value,
                    recipe.objective.aggregation,
                )
            if recipe.penalty is not None:
                aggregation = recipe.objective.aggregation
                loss = loss + reference_penalty(logprobs_MBGT[index], rollouts, recipe.penalty, aggregation)
            losses.append(loss)
        # Seeds share no weights, so each row of the summed loss's gradient belongs to one seed.
        (gradient_MW,) = torch.autograd.grad(torch.stack(losses).sum(), self._weights_MW)
        number = len(self._grad_norms) + 1
        rate_M = torch.full((len(self._seeds),), self._plan.learning_rate * min(1.0, number / _WARMUP_STEPS))
        norms_M = self._optimizer.step(self._weights_MW.detach(), gradient_MW, number=number, rate_M=rate_M)
        self._grad_norms.append(norms_M)

    def _sample(self, weights_MW: Tensor, prompts_MBP: Tensor, group_size: int, *purpose: int) -> Completions:
        return sample(
            self._shape,
            weights_MW,
            prompts_MBP,
            group_size=group_size,
            max_new_tokens=self._environment.max_new_tokens,
            end_token=self._environment.end_token,
            uniforms=seeded_uniforms(self._seeds, *purpose),
        )

    def _prompts(self, firsts: Sequence[int], count: int) -> list[list[str]]:
        return [[self._environment.task.prompt(first + i) for i in range(count)] for first in firsts]

    def _tokens(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        return torch.tensor([[self._environment.prompt_tokens(prompt) for prompt in row] for row in prompts])

    def _evaluate(self, update: int) -> None:
        plan = self._plan
        count = plan.prompts_at(update)
        totals: list[Tensor] = []
        for start in range(0, count, _EVALUATION_CHUNK):
            offset = _EVALUATION_SEEDS + update * _SEEDS_PER_UPDATE + start
            firsts = [offset + seed * _SEEDS_PER_RUN for seed in self._seeds]
            prompts = self._prompts(firsts, min(_EVALUATION_CHUNK, count - start))
            completions = self._sample(self._weights_MW.detach(), self._tokens(prompts), 1, _EVALUATING, update, start)
            grades = grade(self._environment, prompts, completions)
            true_MBG = torch.where(grades.step_mask_MBGK, grades.step_scores_MBGK, 0.0).sum(dim=-1)
            figures = (grades.success_MBG, completions.mask_MBGT.sum(dim=-1), true_MBG, grades.readable_MBG)
            totals.append(torch.stack([figure.double().sum(dim=(1, 2)) for figure in figures]))
        means = (torch.stack(totals).sum(dim=0) / count).T.tolist()
        for curve, (success, tokens, true_steps, readable) in zip(self._curves, means, strict=True):
            curve.append(
                Evaluation(update=update, success=success, tokens=tokens, true_steps=true_steps, readable=readable)
            )
