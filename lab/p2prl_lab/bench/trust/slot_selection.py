"""Training with volunteers that choose among their own work slots: the final reward with slot accounts and without.

Each row trains a policy of its own, all side by side. An update takes 16 groups, eight of them from cheats or all; what
the cheats deliver too little of is made up by honest volunteers, as in a swarm. Rows of one seed see the same honest
groups. A cheat samples as fast as it likes: its work is not limited, only its slots are.

Shape legend: M rows, B prompts, G completions, P prompt tokens, T completion tokens, W weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import build_loss
from p2prl.errors import require
from p2prl_lab.bench.training.environments import Environment, environment_by_name
from p2prl_lab.bench.training.grading import success_rewards
from p2prl_lab.bench.training.seeded_noise import seeded_uniforms
from p2prl_lab.bench.training.stacked_adam import StackedAdam
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs
from p2prl_lab.bench.training.stacked_sampling import Completions, sample
from p2prl_lab.bench.training.warm_start import warm_start_of
from p2prl_lab.bench.trust.selection_rules import SELECTIONS, Sampled, Stream

_GROUPS = 16
_SIZE = 8
_UPDATE_S = 20.0
"""Seconds of an update, for the times of slot accounts."""

_MOST_ATTEMPTS = 4
"""Times that a cheat samples more for one update."""

_WARMUP_UPDATES = 10
_SEEDS_PER_RUN = 1 << 40
_CHEATS_PROMPTS, _EVALUATION_PROMPTS = 1 << 38, 1 << 39
_HONEST, _CHEATING, _EVALUATING = range(3)


@dataclass(frozen=True, kw_only=True)
class SelectionRow:
    """Result of one policy."""

    selection: str
    """A name of `SELECTIONS`."""
    share: float
    """Share of each batch that cheats fill as far as they can."""
    priced: bool
    """Whether the learner keeps slot accounts."""
    seed: int
    reward: float = 0.0
    """After the last update, on fresh prompts."""
    updates: int = 0
    """Updates that there were groups for."""
    sampled: int = 0
    """Slots the cheats sampled."""
    delivered: int = 0
    used: int = 0
    """Groups of the cheats that were credited."""
    trained: int = 0
    """Groups of the cheats that were trained on."""


@dataclass(frozen=True, kw_only=True)
class SelectionConfig:
    """Size of the benchmark."""

    task: str = "chain4"
    updates: int = 100
    learning_rate: float = 5e-4
    seeds: int = 2
    evaluation_prompts: int = 2_048

    def __post_init__(self) -> None:
        require("updates", self.updates, 1 <= self.updates <= 1_000, "1 to 1,000")
        require("seeds", self.seeds, 1 <= self.seeds <= 64, "1 to 64")
        require("evaluation_prompts", self.evaluation_prompts, 1 <= self.evaluation_prompts <= 1 << 16, "1 to 65,536")


CASES: tuple[tuple[str, float, bool], ...] = (
    ("honest", 0.5, True),
    ("highest of 8", 0.5, False),
    ("highest of 8", 0.5, True),
    ("highest of 8", 1.0, False),
    ("lowest of 8", 0.5, True),
    ("without the best of 64", 1.0, True),
    ("redo the end of 8", 0.5, True),
)
"""(selection, share, priced) of the committed figures. With accounts and no honest volunteer, one that leaves out more
than is free stops the run, so that case has no final reward."""


def run_selection(
    config: SelectionConfig,
    out: Path,
    *,
    cases: Sequence[tuple[str, float, bool]] = CASES,
    on_progress: Callable[[float], None] = lambda _: None,
    warm_start: Callable[[Environment, range, Path], Tensor] = warm_start_of,
) -> list[SelectionRow]:
    """One row for each case and seed. Warm starts are cached under `out`."""
    rows = [
        SelectionRow(selection=name, share=share, priced=priced, seed=seed)
        for seed in range(config.seeds)
        for name, share, priced in cases
    ]
    environment = environment_by_name(config.task)
    warm_MW = warm_start(environment, range(config.seeds), out)
    return _Training(config, environment, rows, warm_MW[[row.seed for row in rows]]).run(on_progress)


@dataclass(frozen=True, slots=True)
class _Group:
    """One group, padded to the task's longest completion."""

    prompt_P: Tensor
    tokens_GT: Tensor
    logprobs_GT: Tensor
    mask_GT: Tensor
    rewards_G: Tensor


class _Training:
    """All rows, update by update."""

    def __init__(
        self, config: SelectionConfig, environment: Environment, rows: Sequence[SelectionRow], start_MW: Tensor
    ) -> None:
        self._config, self._environment, self._rows = config, environment, list(rows)
        self._weights_MW = start_MW.clone().requires_grad_()
        self._optimizer = StackedAdam.fresh(start_MW)
        self._streams = [Stream(SELECTIONS[row.selection], row.priced) for row in rows]
        self._queues: list[list[_Group]] = [[] for _ in rows]
        self._yields = [0] * len(rows)
        """Groups that the last stretch brought the cheats of a row."""
        self._objective = build_loss("gepo_t")

    def run(self, on_progress: Callable[[float], None]) -> list[SelectionRow]:
        for update in range(self._config.updates):
            self._update(update)
            on_progress((update + 1) / self._config.updates)
        return [
            replace(row, reward=reward, sampled=stream.sampled, delivered=stream.delivered, used=stream.used)
            for row, stream, reward in zip(self._rows, self._streams, self._evaluate(), strict=True)
        ]

    def _update(self, update: int) -> None:
        honest = self._sample(list(range(len(self._rows))), _GROUPS, 0, _HONEST, update)
        batches = []
        for index, row in enumerate(self._rows):
            wanted = round(_GROUPS * row.share)
            self._let_cheat(index, wanted, update)
            own, self._queues[index] = self._queues[index][:wanted], self._queues[index][wanted:]
            rest = honest[index][: _GROUPS - len(own)] if row.share < 1 else []
            batches.append([*own, *rest])
            enough = len(batches[-1]) == _GROUPS
            self._rows[index] = replace(row, trained=row.trained + len(own) * enough, updates=row.updates + enough)
        self._train(batches, update)

    def _let_cheat(self, index: int, wanted: int, update: int) -> None:
        """Let the cheats of a row sample until they have enough groups, or as long as it could help them."""
        stream, queue = self._streams[index], self._queues[index]
        for attempt in range(_MOST_ATTEMPTS):
            if len(queue) >= wanted:
                return
            stretches = -(-(wanted - len(queue)) // self._yields[index]) if self._yields[index] else 1
            size = stream.selection.stretch
            first = stream.next_slot
            (groups,) = self._sample([index], stretches * size, first, _CHEATING, update, attempt)
            by_slot = dict(zip(range(first, first + len(groups)), groups, strict=True))
            taken = 0
            for _ in range(stretches):
                if any(slot not in by_slot for slot in stream.slots()):
                    break
                chosen = stream.choose(
                    [
                        Sampled(slot, float(group.rewards_G.mean()), float(group.mask_GT.sum()) / _SIZE, update)
                        for slot in stream.slots()
                        for group in [by_slot[slot]]
                    ],
                    now=_UPDATE_S * update,
                )
                taken += len(chosen)
                queue += [by_slot[each.slot] for each in chosen if each.slot in by_slot]
                if stream.selection.redoes:
                    break  # the rest of this version's slots waits for the next version
            self._yields[index] = taken // stretches
            if not taken or stream.selection.redoes:
                return

    def _sample(self, rows: Sequence[int], count: int, first: int, *purpose: int) -> list[list[_Group]]:
        """`count` groups for each of some rows, by their present policies."""
        environment, seeds = self._environment, [self._rows[row].seed for row in rows]
        offset = {_HONEST: purpose[1] * _GROUPS, _CHEATING: _CHEATS_PROMPTS + first}[purpose[0]]
        prompts = [
            [environment.task.prompt(seed * _SEEDS_PER_RUN + offset + i) for i in range(count)] for seed in seeds
        ]
        prompts_MBP = torch.tensor([[environment.prompt_tokens(prompt) for prompt in row] for row in prompts])
        completions = self._complete(self._weights_MW.detach()[list(rows)], prompts_MBP, _SIZE, seeds, *purpose)
        rewards_MBG = success_rewards(environment, prompts, completions)
        longest = environment.max_new_tokens - completions.tokens_MBGT.shape[-1]
        tokens, logprobs, mask = (
            torch.nn.functional.pad(each, (0, longest), value=value)
            for each, value in (
                (completions.tokens_MBGT, environment.end_token),
                (completions.logprobs_MBGT, 0.0),
                (completions.mask_MBGT, False),
            )
        )
        return [
            [
                _Group(prompts_MBP[m, b], tokens[m, b], logprobs[m, b], mask[m, b], rewards_MBG[m, b])
                for b in range(count)
            ]
            for m in range(len(rows))
        ]

    def _complete(
        self, weights_MW: Tensor, prompts_MBP: Tensor, size: int, seeds: Sequence[int], *purpose: int
    ) -> Completions:
        return sample(
            self._environment.shape,
            weights_MW,
            prompts_MBP,
            group_size=size,
            max_new_tokens=self._environment.max_new_tokens,
            end_token=self._environment.end_token,
            uniforms=seeded_uniforms(seeds, *purpose),
        )

    def _train(self, batches: Sequence[Sequence[_Group]], update: int) -> None:
        """One step of each row; a row without enough groups stays as it is."""
        full = [len(batch) == _GROUPS for batch in batches]
        spare = next((batch for batch, is_full in zip(batches, full, strict=True) if is_full), None)
        if spare is None:
            return
        used = [batch if is_full else spare for batch, is_full in zip(batches, full, strict=True)]

        def stacked(name: str) -> Tensor:
            return torch.stack([torch.stack([getattr(group, name) for group in batch]) for batch in used])

        mask_MBGT, behavior_MBGT = stacked("mask_GT"), stacked("logprobs_GT")
        logprobs_MBGT = completion_logprobs(
            self._environment.shape, self._weights_MW, stacked("prompt_P"), stacked("tokens_GT")
        )
        losses = []
        for index, batch in enumerate(used):
            rewards_BG = torch.stack([group.rewards_G for group in batch])
            advantages = self._objective.advantages(rewards_BG, mask_MBGT[index].sum(dim=-1))
            rollouts = RolloutBatch(
                behavior_logprobs_BGT=behavior_MBGT[index],
                mask_BGT=mask_MBGT[index],
                advantages_BG=advantages.advantages_BG,
                staleness_BG=torch.zeros(rewards_BG.shape, dtype=torch.int64),
            )
            losses.append(self._objective.loss(logprobs_MBGT[index], rollouts).loss)
        # Rows share no weights, so each row of the summed loss's gradient belongs to one.
        (gradient_MW,) = torch.autograd.grad(torch.stack(losses).sum(), self._weights_MW)
        rate = self._config.learning_rate * min(1.0, (update + 1) / _WARMUP_UPDATES)
        rate_M = rate * torch.tensor(full, dtype=torch.float32)
        self._optimizer.step(self._weights_MW.detach(), gradient_MW, number=update + 1, rate_M=rate_M)

    def _evaluate(self) -> list[float]:
        """Mean reward of each row on fresh prompts, the same for all rows of a seed."""
        environment, count = self._environment, self._config.evaluation_prompts
        seeds = [row.seed for row in self._rows]
        totals = torch.zeros(len(seeds))
        for start in range(0, count, 256):
            chunk = range(start, min(count, start + 256))
            firsts = [seed * _SEEDS_PER_RUN + _EVALUATION_PROMPTS for seed in seeds]
            prompts = [[environment.task.prompt(first + i) for i in chunk] for first in firsts]
            prompts_MBP = torch.tensor([[environment.prompt_tokens(prompt) for prompt in row] for row in prompts])
            completions = self._complete(self._weights_MW.detach(), prompts_MBP, 1, seeds, _EVALUATING, start)
            totals += success_rewards(environment, prompts, completions).sum(dim=(1, 2))
        return [float(total) / count for total in totals]
