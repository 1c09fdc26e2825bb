"""Training under staleness: one method, one delay distribution, several seeds side by side.

Samplers use old policies of the learner. The seed fixes all randomness: two methods on one seed see the same prompts,
delays and sampling noise, and a seed's result does not depend on the seeds beside it, up to rounding.

Shape legend: M seeds, S samplers, B prompts, G completions, T tokens, W weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.errors import LocalProtocolError, require
from p2prl_lab.bench.staleness.delay_laws import SAMPLERS, DelayLaw
from p2prl_lab.bench.staleness.measures import TAPERED
from p2prl_lab.bench.staleness.methods import Method
from p2prl_lab.bench.staleness.policy_evaluation import evaluate
from p2prl_lab.bench.staleness.score_norms import score_norms
from p2prl_lab.bench.staleness.seed_log import SeedLog, SeedResult
from p2prl_lab.bench.staleness.silent_groups import logprobs_of, pulls, silent_groups
from p2prl_lab.bench.training.drafted_sampling import complete
from p2prl_lab.bench.training.environments import Environment
from p2prl_lab.bench.training.gradient_alignment import GradientAlignment
from p2prl_lab.bench.training.grading import success_rewards
from p2prl_lab.bench.training.seeded_noise import seeded_uniforms
from p2prl_lab.bench.training.stacked_adam import BETA2, StackedAdam
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs
from p2prl_lab.bench.training.stacked_sampling import Completions
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.bench.training.warm_start import SEED_LIMIT

RESULT_VERSION = 1
"""Incremented when a change here, or in code all losses share (guards, advantages, aggregation, the decoder, the
optimizer), affects figures: results of an older version are not reused."""

_WARMUP_UPDATES = 10
_TAPER_EVERY = 4
"""Updates between two looks at what the weights would be on policy, which cost a loss each."""

_SEEDS_PER_RUN = 1 << 40
_DELAYS, _SAMPLING = range(2)
"""Purposes of the noise; `policy_evaluation` has the next ones."""


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Training data of one update."""

    tokens_MBP: Tensor
    """Prompts."""
    completions: Completions
    rewards_MBG: Tensor
    delays: list[list[int]]
    """Delay in updates, for each seed and sampler."""


class DelayedTraining:
    """Several seeds of one method, trained update by update; many attributes because they are the run's whole state."""

    def __init__(
        self,
        environment: Environment,
        method: Method,
        delay: DelayLaw,
        plan: TrainingPlan,
        seeds: Sequence[int],
        start_MW: Tensor,
    ) -> None:
        for seed in seeds:
            require("seed", seed, 0 <= seed < SEED_LIMIT, f"0 to {SEED_LIMIT - 1}")
        self._environment, self._method, self._delay, self._plan = environment, method, delay, plan
        self._group, self._device = plan.group_size, start_MW.device
        self._prompts = plan.prompts_of(environment)
        self._skips_silent = (environment.is_long or environment.schedule is not None) and not pulls(method.objective)
        self._seeds = tuple(seeds)
        self._weights_MW = start_MW.clone().requires_grad_()
        self._average_MW = start_MW.clone()
        self._optimizer = StackedAdam.fresh(
            start_MW, beta2=method.additions.get("beta2", BETA2), amsgrad="amsgrad" in method.additions
        )
        self._alignment = GradientAlignment(method.additions["gac"]) if "gac" in method.additions else None
        self._history = {0: start_MW.clone()}
        """Policies that samplers may still use, by number of updates."""
        self._replayable: dict[int, _Batch] = {}
        """Batches that `+replay` will reuse, by update."""
        self._delay_rngs = [np.random.default_rng([seed, _DELAYS]) for seed in seeds]
        self._logs = {plan: SeedLog(seeds, start_MW.device)}
        """A log for every plan that this training carries out."""

    def run(self, *, on_progress: Callable[[float], None] | None = None) -> list[SeedResult]:
        """Train to the end of the plan; one result for each seed, in the order given."""
        return self.run_lengths((), on_progress=on_progress)[self._plan]

    def run_lengths(
        self, shorter: Sequence[TrainingPlan], *, on_progress: Callable[[float], None] | None = None
    ) -> dict[TrainingPlan, list[SeedResult]]:
        """As `run`, and the same results that runs of shorter plans would have, evaluated on the way.

        Only the learning rate and the number of updates of a plan affect training, so they are exactly those runs.
        LocalProtocolError for a plan of another learning rate or no fewer updates, and under `+decay`, which depends on
        the length.
        """
        plan = self._plan
        for other in shorter:
            if (
                other.learning_rate != plan.learning_rate
                or other.updates >= plan.updates
                or "decay" in self._method.additions
            ):
                raise LocalProtocolError(f"a run of {plan.updates} updates does not contain one by {other}")
            self._logs[other] = SeedLog(self._seeds, self._device)
        self._evaluate(0)
        for update in range(plan.updates):
            self._update(update)
            self._evaluate(update + 1)
            if on_progress is not None:
                on_progress((update + 1) / plan.updates)
        return {each: log.results() for each, log in self._logs.items()}

    def _update(self, update: int) -> None:
        delays = [
            [self._delay.delay(rng.random(), update, sampler) for sampler in range(SAMPLERS)]
            for rng in self._delay_rngs
        ]
        count, environment = self._prompts, self._environment.at(update)
        prompts = [
            [environment.prompt(seed * _SEEDS_PER_RUN + update * count + i) for i in range(count)]
            for seed in self._seeds
        ]
        tokens = [[environment.prompt_tokens(p) for p in row] for row in prompts]
        tokens_MBP = torch.tensor(tokens, device=self._device)
        completions = self._rollouts(update, delays, prompts, tokens_MBP)
        rewards_MBG = success_rewards(environment, prompts, completions).to(self._device)
        batch = _Batch(tokens_MBP=tokens_MBP, completions=completions, rewards_MBG=rewards_MBG, delays=delays)
        loss, factors = self._loss(batch, update)
        replayed = self._replayed(batch, update)
        if replayed is not None:
            # Each batch counts half, so the gradient keeps its scale and no batch weighs more than without replay.
            loss = (loss + self._loss(replayed, update, logged=False)[0]) / 2
        # Seeds share no weights, so each row of the summed loss's gradient belongs to one seed.
        (gradient_MW,) = torch.autograd.grad(loss, self._weights_MW)
        if self._alignment is not None:
            gradient_MW = self._alignment.controlled(gradient_MW)
        rate = self._method.learning_rate(self._plan) * min(1.0, (update + 1) / _WARMUP_UPDATES)
        rate_M = rate * torch.tensor(factors, device=self._device)
        norms_M = self._optimizer.step(self._weights_MW.detach(), gradient_MW, number=update + 1, rate_M=rate_M)
        for log in self._logs_of(update):
            log.stepped(norms_M)
        self._publish(update + 1)

    def _replayed(self, batch: _Batch, update: int) -> _Batch | None:
        """The older batch that `+replay` reuses now, if any; stores this one for later."""
        if "replay" not in self._method.additions:
            return None
        lag = int(self._method.additions["replay"])
        self._replayable[update] = batch
        earlier = self._replayable.pop(update - lag, None)
        if earlier is None:
            return None
        return replace(earlier, delays=[[delay + lag for delay in row] for row in earlier.delays])

    def _publish(self, done: int) -> None:
        """Average the weights, and keep the policy that samplers get after `done` updates."""
        additions = self._method.additions
        kept = additions.get("published", additions.get("average", 0.0))
        # Early averages cover at most the last ninth of the run so far, so that they soon forget the warm start.
        kept = min(kept, done / (done + 9))
        self._average_MW.lerp_(self._weights_MW.detach(), 1 - kept)
        sampled_MW = self._average_MW if "published" in additions else self._weights_MW.detach()
        if not self._delay.is_offline and done % self._delay.period == 0:
            self._history[done] = sampled_MW.clone()
        self._history.pop(done - self._delay.longest - 1, None)

    def _rollouts(
        self, update: int, delays: list[list[int]], prompts: list[list[str]], tokens_MBP: Tensor
    ) -> Completions:
        """Completions (M, B, G, T): each sampler, with its own old policy, completes a quarter of the prompts or, under
        a law within groups, a quarter of every group."""
        seeds, within, size = len(self._seeds), self._delay.within_groups, self._group
        count = tokens_MBP.shape[1]
        # Samplers with one policy are one sampler of all prompts: their noise is the same, and a batch is computed
        # faster than its parts.
        samplers = SAMPLERS if within or any(min(row) < max(row) for row in delays) else 1
        old_MSW = torch.stack(
            [self._history[update - delay][index] for index, row in enumerate(delays) for delay in row[:samplers]]
        )
        if within:
            per_sampler = tokens_MBP.repeat_interleave(SAMPLERS, dim=0)
            texts = [row for row in prompts for _ in range(SAMPLERS)]
        else:
            share = count // samplers
            per_sampler = tokens_MBP.reshape(seeds * samplers, share, -1)
            texts = [row[start : start + share] for row in prompts for start in range(0, count, share)]
        sampled = complete(
            self._environment.at(update),
            old_MSW,
            texts,
            per_sampler,
            group_size=size // SAMPLERS if within else size,
            uniforms=seeded_uniforms(self._seeds, _SAMPLING, update),
        )
        shape = (seeds, count, size)

        def together(values: Tensor) -> Tensor:
            if not within:
                return values.view(*shape, *values.shape[3:])
            parts = values.view(seeds, SAMPLERS, count, size // SAMPLERS, *values.shape[3:])
            return parts.transpose(1, 2).reshape(*shape, *values.shape[3:])

        return Completions(
            tokens_MBGT=together(sampled.tokens_MBGT),
            logprobs_MBGT=together(sampled.logprobs_MBGT),
            mask_MBGT=together(sampled.mask_MBGT),
            finished_MBG=together(sampled.finished_MBG),
        )

    def _loss(self, batch: _Batch, update: int, *, logged: bool = True) -> tuple[Tensor, list[float]]:
        """Sum of the seeds' losses, and each seed's learning-rate factor from the method's additions."""
        logprobs_MBGT = self._logprobs(batch)
        done = update / self._plan.updates
        losses, factors = [], []
        for index, logprobs_BGT in enumerate(logprobs_MBGT):
            output, rollouts = self._seed_loss(index, logprobs_BGT, batch)
            mask_BGT = rollouts.mask_BGT
            log_ratios_BGT = torch.where(mask_BGT, logprobs_BGT.detach() - rollouts.behavior_logprobs_BGT, 0.0)
            sequence_N = log_ratios_BGT.sum(dim=-1).flatten()
            kl = -log_ratios_BGT.sum() / mask_BGT.sum()
            losses.append(output.loss)
            delays_S = batch.delays[index]
            factors.append(
                self._method.rate_factor(
                    kl,
                    sequence_N,
                    done=done,
                    age=sum(delays_S) / len(delays_S),
                    is_offline=min(delays_S) == update > 0,
                )
            )
            if logged:
                seen = update % _TAPER_EVERY == 0
                tapered = self._tapered(logprobs_BGT.detach(), rollouts, output) if seen else None
                for log in self._logs_of(update):
                    log.trained(index, output, sequence_N, kl, tapered)
        return torch.stack(losses).sum(), factors

    def _logprobs(self, batch: _Batch) -> Tensor:
        """Log-probs (M, B, G, T) of a batch. Of long completions, and on tasks that move, groups without a learning
        signal have no gradient: the same update for less than half the work once most groups agree."""
        inputs = self._environment.shape, self._weights_MW, batch.tokens_MBP, batch.completions.tokens_MBGT
        if not self._skips_silent:
            return completion_logprobs(*inputs)
        lengths_MBG = batch.completions.mask_MBGT.sum(dim=-1)
        pairs = zip(batch.rewards_MBG, lengths_MBG, strict=True)
        advantages = [self._method.objective.advantages(*pair).advantages_BG for pair in pairs]
        return logprobs_of(*inputs, silent_groups(torch.stack(advantages)))

    def _tapered(self, logprobs_BGT: Tensor, rollouts: RolloutBatch, output: LossOutput) -> float | None:
        """Share of failures whose weight the delay has cut below `TAPERED` of what it were on policy; None for none."""
        fresh = self._method.objective.loss(logprobs_BGT, replace(rollouts, behavior_logprobs_BGT=logprobs_BGT))
        weights_BG, fresh_BG = (each.weights_BGT.sum(dim=-1) for each in (output, fresh))
        failures_BG = (rollouts.advantages_BG < 0) & (fresh_BG > 0)
        if not bool(failures_BG.any()):
            return None
        return float((weights_BG < TAPERED * fresh_BG)[failures_BG].double().mean())

    def _seed_loss(self, index: int, logprobs_BGT: Tensor, batch: _Batch) -> tuple[LossOutput, RolloutBatch]:
        """One seed's loss, and its rollouts."""
        mask_BGT, behavior_BGT = batch.completions.mask_MBGT[index], batch.completions.logprobs_MBGT[index]
        log_ratios_BGT = torch.where(mask_BGT, logprobs_BGT.detach() - behavior_BGT, 0.0)
        norms_BG = None
        if "opob" in self._method.additions:
            tokens_BGT = batch.completions.tokens_MBGT[index]
            weights_W, prompts_BP = self._weights_MW[index], batch.tokens_MBP[index]
            norms_BG = score_norms(self._environment.shape, weights_W, prompts_BP, tokens_BGT, mask_BGT)
        advantages_BG = self._method.advantages(
            batch.rewards_MBG[index], mask_BGT.sum(dim=-1), log_ratios_BGT.sum(dim=-1), norms_BG
        )
        delays_S = torch.tensor(batch.delays[index], device=self._device)
        count, size = self._prompts, self._group
        if self._delay.within_groups:
            staleness_BG = delays_S.repeat_interleave(size // SAMPLERS).expand(count, size)
        else:
            staleness_BG = delays_S.repeat_interleave(count // SAMPLERS).unsqueeze(1).expand(count, size)
        rollouts = RolloutBatch(
            behavior_logprobs_BGT=behavior_BGT,
            mask_BGT=mask_BGT,
            advantages_BG=advantages_BG,
            staleness_BG=staleness_BG,
        )
        return self._method.objective.loss(logprobs_BGT, rollouts), rollouts

    def _logs_of(self, update: int) -> list[SeedLog]:
        """Logs of the plans that an update is part of."""
        return [log for plan, log in self._logs.items() if update < plan.updates]

    def _evaluate(self, update: int) -> None:
        """Evaluate for every plan that asks for it after this many updates."""
        due = [plan for plan in self._logs if update <= plan.updates and update % plan.evaluate_every == 0]
        found = {
            # What the update before trained on is asked, not what comes next.
            count: evaluate(
                self._environment.at(max(0, update - 1)), self._average_MW, self._seeds, update=update, prompts=count
            )
            for count in {plan.prompts_at(update) for plan in due}
        }
        for plan in due:
            self._logs[plan].evaluated(found[plan.prompts_at(update)])
