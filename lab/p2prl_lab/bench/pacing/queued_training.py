"""Training on the groups of a simulated queue: each is sampled with the version it names, when it is trained on.

Shape legend: B groups of an update, G completions, T tokens, P prompt tokens, W weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import build_loss
from p2prl.algorithms.objective import Objective
from p2prl.planning.queue_simulation import QueueResult, SimulatedGroup
from p2prl_lab.bench.pacing.slow_swarm import SlowSwarm, simulate_swarm
from p2prl_lab.bench.training.environments import Environment
from p2prl_lab.bench.training.grading import success_rewards
from p2prl_lab.bench.training.seeded_noise import seeded_uniforms
from p2prl_lab.bench.training.stacked_adam import StackedAdam
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs
from p2prl_lab.bench.training.stacked_sampling import Completions, sample

_GROUP = 8
_WARMUP_UPDATES = 10
_EVALUATION_SEEDS = 1 << 62
_SEEDS_PER_RUN = 1 << 40
_SEEDS_PER_MACHINE = 1 << 24
_EVALUATED_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class TrainedQueue:
    """One seed under one order."""

    queue: QueueResult
    greedy: float
    """Share of fresh prompts whose greedy completion is right."""
    greedy_hard: float
    """The same of the hard ones."""


def is_hard_prompt(prompt: str) -> bool:
    """At least two of its three operations are products, which the first policy often works out as sums."""
    return prompt.count("*") >= 2


class QueuedTraining:
    """One seed of one swarm."""

    def __init__(
        self, environment: Environment, swarm: SlowSwarm, *, seed: int, learning_rate: float, start_W: Tensor
    ) -> None:
        self._environment, self._swarm, self._seed, self._rate = environment, swarm, seed, learning_rate
        self._weights_MW = start_W.clone().unsqueeze(0).requires_grad_()
        self._objective = _objective(environment)

    def run(self, *, prompts: int, on_progress: Callable[[float], None] | None = None) -> TrainedQueue:
        """Train on the queue's batches, then evaluate on a number of fresh prompts."""
        queue = simulate_swarm(self._swarm, lambda machine, slot: is_hard_prompt(self._prompt(machine, slot)))
        last_use = {group.version_step: step for step, batch in enumerate(queue.batches) for group in batch}
        versions = {0: self._weights_MW.detach()[0].clone()}
        optimizer = StackedAdam.fresh(self._weights_MW.detach())
        for step, batch in enumerate(queue.batches):
            self._update(step, batch, versions, optimizer)
            versions[step + 1] = self._weights_MW.detach()[0].clone()
            versions = {at: held for at, held in versions.items() if at == step + 1 or last_use.get(at, -1) > step}
            if on_progress is not None:
                on_progress((step + 1) / len(queue.batches))
        greedy, hard = self._evaluate(prompts)
        return TrainedQueue(queue=queue, greedy=greedy, greedy_hard=hard)

    def _prompt(self, machine: int, slot: int) -> str:
        return self._environment.task.prompt(self._seed * _SEEDS_PER_RUN + machine * _SEEDS_PER_MACHINE + slot)

    def _update(
        self, step: int, batch: list[SimulatedGroup], versions: dict[int, Tensor], optimizer: StackedAdam
    ) -> None:
        environment = self._environment
        prompts = [self._prompt(group.machine, group.number) for group in batch]
        tokens_BP = torch.tensor([environment.prompt_tokens(prompt) for prompt in prompts])
        sampled = self._sample(torch.stack([versions[g.version_step] for g in batch]), tokens_BP.unsqueeze(1), step)
        rewards_BG = success_rewards(environment, [[prompt] for prompt in prompts], sampled)[:, 0]
        mask_BGT = sampled.mask_MBGT[:, 0]
        logprobs_MBGT = completion_logprobs(
            environment.shape, self._weights_MW, tokens_BP.unsqueeze(0), sampled.tokens_MBGT[:, 0].unsqueeze(0)
        )
        staleness_B1 = torch.tensor([[step - group.version_step] for group in batch])
        loss = self._objective.loss(
            logprobs_MBGT[0],
            RolloutBatch(
                behavior_logprobs_BGT=sampled.logprobs_MBGT[:, 0],
                mask_BGT=mask_BGT,
                advantages_BG=self._objective.advantages(rewards_BG, mask_BGT.sum(dim=-1)).advantages_BG,
                staleness_BG=staleness_B1.expand(mask_BGT.shape[:2]),
            ),
        ).loss
        (gradient_MW,) = torch.autograd.grad(loss, self._weights_MW)
        rate_M = torch.tensor([self._rate * min(1.0, (step + 1) / _WARMUP_UPDATES)])
        optimizer.step(self._weights_MW.detach(), gradient_MW, number=step + 1, rate_M=rate_M)

    def _sample(self, weights_BW: Tensor, prompts_B1P: Tensor, step: int) -> Completions:
        return sample(
            self._environment.shape,
            weights_BW,
            prompts_B1P,
            group_size=_GROUP,
            max_new_tokens=self._environment.max_new_tokens,
            end_token=self._environment.end_token,
            uniforms=seeded_uniforms([self._seed], step),
        )

    def _evaluate(self, count: int) -> tuple[float, float]:
        """(share right, share right of the hard ones) on fresh prompts, greedily."""
        environment, right, hard = self._environment, [], []
        first = _EVALUATION_SEEDS + self._seed * _SEEDS_PER_RUN
        for start in range(0, count, _EVALUATED_AT_ONCE):
            seeds = range(first + start, first + min(count, start + _EVALUATED_AT_ONCE))
            prompts = [environment.task.prompt(each) for each in seeds]
            tokens_1BP = torch.tensor([[environment.prompt_tokens(prompt) for prompt in prompts]])
            found = sample(
                environment.shape,
                self._weights_MW.detach(),
                tokens_1BP,
                group_size=1,
                max_new_tokens=environment.max_new_tokens,
                end_token=environment.end_token,
                uniforms=None,
            )
            right += success_rewards(environment, [prompts], found).flatten().tolist()
            hard += [is_hard_prompt(prompt) for prompt in prompts]
        of_hard = [each for each, is_hard in zip(right, hard, strict=True) if is_hard]
        return sum(right) / len(right), sum(of_hard) / max(1, len(of_hard))


def _objective(environment: Environment) -> Objective:
    """GEPO-T divided by NLL, which the figures of docs/benchmarks/pacing.md were measured with."""
    return build_loss("gepo_t", options={"sharpness": 1.0}, max_completion_tokens=environment.max_new_tokens)
