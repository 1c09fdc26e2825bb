"""Training on batches of which some groups were chosen by their authors: what such a choice costs a run.

A batch is a list of requests, one for each group, and only these groups are sampled: who is in a batch does not depend
on what its groups say. A group chosen by version is sampled under several policies of the past, with the same noise for
all of them or with noise of their own; one chosen by slot is the best of several slots.

Shape legend: V versions, B prompts, G completions, P prompt tokens, T completion tokens, W weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import build_loss
from p2prl_lab.bench.training.environments import Environment
from p2prl_lab.bench.training.grading import success_rewards
from p2prl_lab.bench.training.seeded_noise import seeded_uniforms
from p2prl_lab.bench.training.stacked_adam import StackedAdam
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs
from p2prl_lab.bench.training.stacked_sampling import sample

_SIZE = 8
_WARMUP_UPDATES = 10
_SEEDS_PER_RUN = 1 << 40
_EVALUATION_PROMPTS = 1 << 39
_SAMPLING, _EVALUATING = range(2)
MOST_VERSIONS = 64
"""Policies of the past that are kept, one an update."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """How one group of a batch was made."""

    slot: int
    """Number of its prompt and noise in the run; no two groups share one."""
    slots: int = 1
    """Slots it was chosen from: this and the following ones."""
    versions: int = 1
    """Newest versions it was chosen from."""
    own_noise: bool = False
    """Whether each version draws noise of its own."""
    by_length: bool = False
    """Whether the longest group is chosen, and not that of the highest reward."""

    def at(self, slot: int) -> Wanted:
        """The same of another slot."""
        return replace(self, slot=slot)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups of several policies."""

    prompts_BP: Tensor
    tokens_VBGT: Tensor
    logprobs_VBGT: Tensor
    mask_VBGT: Tensor
    rewards_VBG: Tensor


class ChosenTraining:
    """One policy, trained batch by batch."""

    def __init__(
        self, environment: Environment, start_W: Tensor, *, seed: int, learning_rate: float, loss: str = "gepo_t"
    ) -> None:
        """`start_W` are the weights of the warm start."""
        self._environment, self._seed, self._rate = environment, seed, learning_rate
        self._weights_1W = start_W[None].clone().requires_grad_()
        self._optimizer = StackedAdam.fresh(start_W[None])
        self._past: deque[Tensor] = deque(maxlen=MOST_VERSIONS)
        self._objective = build_loss(loss)
        self._update = 0

    def update(self, wanted: Sequence[Wanted]) -> None:
        """Sample the groups of a batch and take one step on them."""
        self._past.append(self._weights_1W.detach()[0].clone())
        picked = [self._choose(each) for each in wanted if each.versions > 1 or each.slots > 1]
        plain = [each.slot for each in wanted if each.versions == each.slots == 1]
        if plain:
            made = self._sample([self._past[-1]], plain, [self._noise(plain[0])])
            picked += [(made, 0, index) for index in range(len(plain))]
        self._train(picked)

    def reward(self, prompts: int) -> float:
        """Mean reward on fresh prompts, the same for every policy of a seed."""
        total = 0.0
        for first in range(0, prompts, 256):
            chunk = [_EVALUATION_PROMPTS + first + i for i in range(min(256, prompts - first))]
            made = self._sample([self._weights_1W.detach()[0]], chunk, [(_EVALUATING, first)], size=1)
            total += float(made.rewards_VBG.sum())
        return total / prompts

    def _noise(self, slot: int, version: int = 0) -> tuple[int, ...]:
        return _SAMPLING, slot, version

    def _choose(self, wanted: Wanted) -> tuple[_Groups, int, int]:
        """The groups that one was chosen from, and its version and slot among them."""
        versions = list(self._past)[-wanted.versions :]
        noises = [
            self._noise(wanted.slot, self._update + number if wanted.own_noise else 0)
            for number in range(len(versions))
        ]
        made = self._sample(versions, list(range(wanted.slot, wanted.slot + wanted.slots)), noises)
        lengths = made.mask_VBGT.sum(dim=(2, 3)).float()
        worth = lengths if wanted.by_length else made.rewards_VBG.sum(dim=-1)
        best = int(worth.flatten().argmax())
        return made, best // worth.shape[1], best % worth.shape[1]

    def _sample(
        self, versions: Sequence[Tensor], slots: Sequence[int], noises: Sequence[tuple[int, ...]], *, size: int = _SIZE
    ) -> _Groups:
        environment = self._environment
        prompts = [environment.task.prompt(self._seed * _SEEDS_PER_RUN + slot) for slot in slots]
        prompts_BP = torch.tensor([environment.prompt_tokens(prompt) for prompt in prompts])
        draws = [seeded_uniforms([self._seed], *noise) for noise in noises]

        def uniforms(shape: tuple[int, ...]) -> Tensor:
            own = (shape[0] // len(draws), *shape[1:])
            return torch.cat([draw(own) for draw in draws])

        completions = sample(
            environment.shape,
            torch.stack(list(versions)),
            prompts_BP.expand(len(versions), -1, -1),
            group_size=size,
            max_new_tokens=environment.max_new_tokens,
            end_token=environment.end_token,
            uniforms=uniforms,
        )
        rewards_VBG = success_rewards(environment, [prompts] * len(versions), completions)
        missing = environment.max_new_tokens - completions.tokens_MBGT.shape[-1]
        tokens, logprobs, mask = (
            torch.nn.functional.pad(each, (0, missing), value=value)
            for each, value in (
                (completions.tokens_MBGT, environment.end_token),
                (completions.logprobs_MBGT, 0.0),
                (completions.mask_MBGT, False),
            )
        )
        return _Groups(prompts_BP, tokens, logprobs, mask, rewards_VBG)

    def _train(self, picked: Sequence[tuple[_Groups, int, int]]) -> None:
        def stacked(of: Callable[[_Groups, int, int], Tensor]) -> Tensor:
            return torch.stack([of(*each) for each in picked])

        mask_BGT = stacked(lambda groups, version, slot: groups.mask_VBGT[version, slot])
        rewards_BG = stacked(lambda groups, version, slot: groups.rewards_VBG[version, slot])
        logprobs_1BGT = completion_logprobs(
            self._environment.shape,
            self._weights_1W,
            stacked(lambda groups, _, slot: groups.prompts_BP[slot])[None],
            stacked(lambda groups, version, slot: groups.tokens_VBGT[version, slot])[None],
        )
        advantages = self._objective.advantages(rewards_BG, mask_BGT.sum(dim=-1))
        rollouts = RolloutBatch(
            behavior_logprobs_BGT=stacked(lambda groups, version, slot: groups.logprobs_VBGT[version, slot]),
            mask_BGT=mask_BGT,
            advantages_BG=advantages.advantages_BG,
            staleness_BG=torch.zeros(rewards_BG.shape, dtype=torch.int64),
        )
        loss = self._objective.loss(logprobs_1BGT[0], rollouts).loss
        (gradient_1W,) = torch.autograd.grad(loss, self._weights_1W)
        self._update += 1
        rate = self._rate * min(1.0, self._update / _WARMUP_UPDATES)
        self._optimizer.step(self._weights_1W.detach(), gradient_1W, number=self._update, rate_M=torch.tensor([rate]))
