"""One method under one law of delay, several seeds side by side: sampling from old policies, and the updates.

Everything random follows from the seed: two methods on one seed see the same prompts, delays and sampling noise, and
what a seed gives does not depend on the seeds that ran beside it, up to rounding.

Shape legend: M seeds, S samplers, B prompts, G completions, T tokens, W weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.ratios import effective_sample_size
from p2prl.bench.staleness.delay_laws import DelayLaw
from p2prl.bench.staleness.methods import Method
from p2prl.bench.training.environments import Environment
from p2prl.bench.training.seeded_noise import seeded_uniforms
from p2prl.bench.training.stacked_adam import BETA2, StackedAdam
from p2prl.bench.training.stacked_decoder import Completions, completion_logprobs, sample
from p2prl.errors import require

_SAMPLERS = 4
_PROMPTS = 16
_GROUP = 8
_WARMUP_UPDATES = 10
_EVALUATION_CHUNK = 256
_FINAL_EVALUATIONS = 3
_EVALUATION_SEEDS = 1 << 62
_MOST_EVALUATED = 1 << 16
_SEEDS_PER_RUN = 1 << 40
_SEED_LIMIT = 1 << 20
_DELAYS, _SAMPLING, _EVALUATING = range(3)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How long, how fast and how often to look."""

    updates: int = 200
    """Learner updates of 16 prompts × 8 completions."""
    learning_rate: float = 5e-4
    """Of AdamW(.9, .99), after 10 warm-up updates."""
    evaluate_every: int = 20
    """Updates between evaluations; divides `updates`, of which there are at least three periods."""
    evaluation_prompts: int = 256
    """Fresh prompts of an evaluation, one sampled completion each."""
    final_prompts: int = 1024
    """Fresh prompts of each of the last three evaluations, whose mean is `last`."""

    def __post_init__(self) -> None:
        require("learning_rate", self.learning_rate, 0.0 < self.learning_rate < 1.0, "within 0..1, excluded")
        for name in ("evaluate_every", "evaluation_prompts", "final_prompts"):
            require(name, getattr(self, name), 1 <= getattr(self, name) <= _MOST_EVALUATED, f"1 to {_MOST_EVALUATED}")
        legal = self.updates % self.evaluate_every == 0 and self.updates >= _FINAL_EVALUATIONS * self.evaluate_every
        require("updates", self.updates, legal, f"a multiple of {self.evaluate_every}, three of them or more")


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """What one seed came to."""

    seed: int
    curve: tuple[tuple[int, float], ...]
    """(update, reward on fresh prompts), from update 0."""
    grad_norm_max: float
    """Largest gradient norm before the clip."""
    weight_max: float
    """Largest effective weight of a token."""
    ess_min: float
    """Least share ESS/n of the whole-sequence ratios of one update's completions."""
    kl_mean: float
    """Mean of log q − log p, nats a token: how far the samplers' policies were from the learner's."""
    kl_max: float
    """The same, at its worst update."""

    @property
    def last(self) -> float:
        """Mean reward of the last three evaluations."""
        return sum(reward for _, reward in self.curve[-_FINAL_EVALUATIONS:]) / _FINAL_EVALUATIONS

    @property
    def best(self) -> float:
        """Best evaluation."""
        return max(reward for _, reward in self.curve)


@dataclass(frozen=True, kw_only=True)
class _Fed:
    """What one update learns from."""

    tokens_MBP: Tensor
    """Prompts."""
    made: Completions
    rewards_MBG: Tensor
    delays: list[list[int]]
    """Updates, for each seed and sampler."""


class Training:
    """The seeds of one batch, update by update."""

    def __init__(
        self,
        subject: Environment,
        method: Method,
        law: DelayLaw,
        plan: TrainingPlan,
        seeds: Sequence[int],
        start_MW: Tensor,
    ) -> None:
        for seed in seeds:
            require("seed", seed, 0 <= seed < _SEED_LIMIT, f"0 to {_SEED_LIMIT - 1}")
        self._subject, self._method, self._law, self._plan = subject, method, law, plan
        self._seeds = tuple(seeds)
        self._weights_MW = start_MW.clone().requires_grad_()
        self._average_MW = start_MW.clone()
        self._optimiser = StackedAdam.fresh(start_MW, beta2=method.additions.get("beta2", BETA2))
        self._history = {0: start_MW.clone()}
        """Policies that samplers may still use, by the number of updates before them."""
        self._fed: dict[int, _Fed] = {}
        """Batches that may be used once more, by update."""
        self._delays = [np.random.default_rng([seed, _DELAYS]) for seed in seeds]
        self._curves: list[list[tuple[int, float]]] = [[] for _ in seeds]
        self._grad_norms: list[Tensor] = []
        self._figures: list[list[tuple[float, float, float]]] = [[] for _ in seeds]

    def run(self, *, on_progress: Callable[[float], None] | None = None) -> list[SeedResult]:
        """Train to the end of the plan; one result a seed, in the order given."""
        plan = self._plan
        self._evaluate(0)
        for update in range(plan.updates):
            self._update(update)
            if (update + 1) % plan.evaluate_every == 0:
                self._evaluate(update + 1)
            if on_progress is not None:
                on_progress((update + 1) / plan.updates)
        return [self._result(index) for index in range(len(self._seeds))]

    def _update(self, update: int) -> None:
        delays = [[self._law.draw(rng.random(), update) for _ in range(_SAMPLERS)] for rng in self._delays]
        prompts = [
            [self._subject.task.prompt(seed * _SEEDS_PER_RUN + update * _PROMPTS + i) for i in range(_PROMPTS)]
            for seed in self._seeds
        ]
        tokens_MBP = torch.tensor([[self._subject.prompt_tokens(p) for p in row] for row in prompts])
        made = self._rollouts(update, delays, tokens_MBP)
        fed = _Fed(tokens_MBP=tokens_MBP, made=made, rewards_MBG=self._rewards(prompts, made), delays=delays)
        loss, factors = self._loss(fed, update)
        again = self._again(fed, update)
        if again is not None:
            # Both batches teach half: the gradient keeps its scale, and no batch weighs more than it did.
            loss = (loss + self._loss(again, update, noted=False)[0]) / 2
        # Sums over seeds share no weight: the gradient's rows are those of the seeds alone.
        (gradient_MW,) = torch.autograd.grad(loss, self._weights_MW)
        rate = self._plan.learning_rate * min(1.0, (update + 1) / _WARMUP_UPDATES)
        rate_M = rate * torch.tensor(factors)
        norms_M = self._optimiser.step(self._weights_MW.detach(), gradient_MW, number=update + 1, rate_M=rate_M)
        self._grad_norms.append(norms_M)
        self._publish(update + 1)

    def _again(self, fed: _Fed, update: int) -> _Fed | None:
        """The batch that +replay uses once more, if there is one; keeps this one for later."""
        if "replay" not in self._method.additions:
            return None
        lag = int(self._method.additions["replay"])
        self._fed[update] = fed
        again = self._fed.pop(update - lag, None)
        if again is None:
            return None
        return replace(again, delays=[[delay + lag for delay in row] for row in again.delays])

    def _publish(self, done: int) -> None:
        """Average the weights, and keep what samplers get after `done` updates."""
        additions = self._method.additions
        kept = additions.get("published", additions.get("average", 0.0))
        # Early averages reach no further back than a ninth of the run so far: the warm start is soon left behind.
        kept = min(kept, done / (done + 9))
        self._average_MW.lerp_(self._weights_MW.detach(), 1 - kept)
        sampled_MW = self._average_MW if "published" in additions else self._weights_MW.detach()
        self._history[done] = sampled_MW.clone()
        self._history.pop(done - self._law.longest - 1, None)

    def _rollouts(self, update: int, delays: list[list[int]], tokens_MBP: Tensor) -> Completions:
        """Completions (M, B, G, T): sampler s works its own quarter of the prompts with its own old policy."""
        seeds = len(self._seeds)
        old_MSW = torch.stack(
            [self._history[update - delay][index] for index, row in enumerate(delays) for delay in row]
        )
        per_sampler = tokens_MBP.reshape(seeds * _SAMPLERS, _PROMPTS // _SAMPLERS, -1)
        made = sample(
            self._subject.shape,
            old_MSW,
            per_sampler,
            group_size=_GROUP,
            max_new_tokens=self._subject.max_new_tokens,
            end_token=self._subject.end_token,
            uniforms=seeded_uniforms(self._seeds, _SAMPLING, update),
        )
        rows = (seeds, _PROMPTS, _GROUP)
        return Completions(
            tokens_MBGT=made.tokens_MBGT.view(*rows, -1),
            logprobs_MBGT=made.logprobs_MBGT.view(*rows, -1),
            mask_MBGT=made.mask_MBGT.view(*rows, -1),
            finished_MBG=made.finished_MBG.view(*rows),
        )

    def _rewards(self, prompts: list[list[str]], made: Completions) -> Tensor:
        size = made.tokens_MBGT.shape[2]
        texts = [prompt for row in prompts for prompt in row for _ in range(size)]
        rows = zip(
            texts,
            made.tokens_MBGT.flatten(0, 2).tolist(),
            made.mask_MBGT.sum(dim=-1).flatten().tolist(),
            made.finished_MBG.flatten().tolist(),
            strict=True,
        )
        known: dict[tuple[str, tuple[int, ...], bool], float] = {}  # a policy that has learnt repeats itself
        rewards = []
        for text, tokens, length, finished in rows:
            case = (text, tuple(tokens[:length]), finished)
            if case not in known:
                known[case] = self._subject.reward(*case)
            rewards.append(known[case])
        return torch.tensor(rewards).view(made.finished_MBG.shape)

    def _loss(self, fed: _Fed, update: int, *, noted: bool = True) -> tuple[Tensor, list[float]]:
        """The sum of the seeds' losses, and their additions' factors on the learning rate; notes their figures."""
        logprobs_MBGT = completion_logprobs(self._subject.shape, self._weights_MW, fed.tokens_MBP, fed.made.tokens_MBGT)
        done = update / self._plan.updates
        losses, factors = [], []
        for index, logprobs_BGT in enumerate(logprobs_MBGT):
            output, log_ratios_BGT, mask_BGT = self._seed_loss(index, logprobs_BGT, fed)
            sequence_N = log_ratios_BGT.sum(dim=-1).flatten()
            kl = -log_ratios_BGT.sum() / mask_BGT.sum()
            losses.append(output.loss)
            factors.append(self._method.rate_factor(kl, sequence_N, done=done))
            if noted:
                ess = float(effective_sample_size(sequence_N)) / sequence_N.numel()
                self._figures[index].append((float(output.metrics["weight_max"]), ess, float(kl)))
        return torch.stack(losses).sum(), factors

    def _seed_loss(self, index: int, logprobs_BGT: Tensor, fed: _Fed) -> tuple[LossOutput, Tensor, Tensor]:
        """One seed's loss, its log-ratios (B, G, T), 0 off the mask, and the mask."""
        mask_BGT, behavior_BGT = fed.made.mask_MBGT[index], fed.made.logprobs_MBGT[index]
        objective = self._method.objective
        advantages = objective.advantages(fed.rewards_MBG[index], mask_BGT.sum(dim=-1))
        per_prompt = torch.tensor(fed.delays[index]).repeat_interleave(_PROMPTS // _SAMPLERS)
        batch = RolloutBatch(
            behavior_logprobs_BGT=behavior_BGT,
            mask_BGT=mask_BGT,
            advantages_BG=advantages.advantages_BG,
            staleness_BG=per_prompt.unsqueeze(1).expand(_PROMPTS, _GROUP),
        )
        output = objective.loss(logprobs_BGT, batch)
        return output, torch.where(mask_BGT, logprobs_BGT.detach() - behavior_BGT, 0.0), mask_BGT

    def _evaluate(self, update: int) -> None:
        plan = self._plan
        final = update > plan.updates - _FINAL_EVALUATIONS * plan.evaluate_every
        count = plan.final_prompts if final else plan.evaluation_prompts
        totals = torch.zeros(len(self._seeds))
        firsts = [_EVALUATION_SEEDS + seed * _SEEDS_PER_RUN + update * _MOST_EVALUATED for seed in self._seeds]
        for start in range(0, count, _EVALUATION_CHUNK):
            chunk = range(start, min(count, start + _EVALUATION_CHUNK))
            prompts = [[self._subject.task.prompt(first + i) for i in chunk] for first in firsts]
            made = sample(
                self._subject.shape,
                self._average_MW,
                torch.tensor([[self._subject.prompt_tokens(p) for p in row] for row in prompts]),
                group_size=1,
                max_new_tokens=self._subject.max_new_tokens,
                end_token=self._subject.end_token,
                uniforms=seeded_uniforms(self._seeds, _EVALUATING, update, start),
            )
            totals += self._rewards(prompts, made).sum(dim=(1, 2))
        for curve, total in zip(self._curves, totals.tolist(), strict=True):
            curve.append((update, total / count))

    def _result(self, index: int) -> SeedResult:
        weights, ess, kl = zip(*self._figures[index], strict=True)
        return SeedResult(
            seed=self._seeds[index],
            curve=tuple(self._curves[index]),
            grad_norm_max=max(float(norms_M[index]) for norms_M in self._grad_norms),
            weight_max=max(weights),
            ess_min=min(ess),
            kl_mean=sum(kl) / len(kl),
            kl_max=max(kl),
        )
