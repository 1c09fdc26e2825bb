"""Evaluation of several seeds' policies on fresh prompts: sampled, greedy and pass@8.

Shape legend: M seeds, B prompts, G completions, T tokens, W weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from p2prl.errors import LocalProtocolError
from p2prl_lab.bench.staleness.measures import (
    PASS_K,
    PASS_SAMPLES,
    PASS_SHARE,
    Evaluation,
    calibration_error,
    pass_at_k,
    storable,
)
from p2prl_lab.bench.training.drafted_sampling import complete
from p2prl_lab.bench.training.environments import Environment
from p2prl_lab.bench.training.grading import success_rewards
from p2prl_lab.bench.training.seeded_noise import seeded_uniforms
from p2prl_lab.bench.training.stacked_sampling import Completions
from p2prl_lab.bench.training.training_plan import MOST_EVALUATED

_CHUNK = 256
_PROMPT_SEEDS = 1 << 62
_SEEDS_PER_RUN = 1 << 40
_SAMPLED, _PASSED = 2, 3
"""Purposes of the noise; training uses the two before."""

_SEEN_SHARE = 4
"""One training prompt for this many fresh ones: the difference of two means needs no more."""


def evaluate(
    environment: Environment, weights_MW: Tensor, seeds: Sequence[int], *, update: int, prompts: int
) -> list[Evaluation]:
    """One evaluation of each seed's policy on `prompts` fresh prompts, which depend on its seed and `update`.

    The sampled and the greedy completion are of the same prompts; the first of every eight prompts of a chunk also gets
    the completions of pass@8.
    """
    firsts = [_PROMPT_SEEDS + seed * _SEEDS_PER_RUN + update * MOST_EVALUATED for seed in seeds]
    chunks = [
        _chunk(environment, weights_MW, seeds, firsts, update, range(start, min(prompts, start + _CHUNK)))
        for start in range(0, prompts, _CHUNK)
    ]
    seen = _seen(environment, weights_MW, seeds, max(1, prompts // _SEEN_SHARE))
    return [_evaluation([chunk[i] for chunk in chunks], update, seen[i]) for i in range(len(seeds))]


def _seen(environment: Environment, weights_MW: Tensor, seeds: Sequence[int], count: int) -> list[float]:
    """Mean greedy reward of each seed on the first prompts that it was trained on."""
    prompts = [[environment.prompt(seed * _SEEDS_PER_RUN + i) for i in range(count)] for seed in seeds]
    tokens = [[environment.prompt_tokens(p) for p in row] for row in prompts]
    tokens_MBP = torch.tensor(tokens, device=weights_MW.device)
    greedy = complete(environment, weights_MW, prompts, tokens_MBP, group_size=1, uniforms=None)
    means: list[float] = success_rewards(environment, prompts, greedy).double().flatten(1).mean(dim=1).tolist()
    return means


class _Counts:
    """One seed's graded completions of one chunk: of every prompt a sampled one, then the greedy one."""

    def __init__(self, index: int, both: Completions, rewards_MB2: Tensor) -> None:
        lengths_B = both.mask_MBGT[index, :, 0].sum(dim=-1)
        if both.entropies_MBGT is None:
            raise LocalProtocolError("an evaluation needs entropies")
        self.sampled, self.greedy = (rewards_MB2[index, :, each].tolist() for each in range(2))
        self.chances = both.logprobs_MBGT[index, :, 1].sum(dim=-1).exp().nan_to_num(0.0).tolist()
        self.lengths = lengths_B.tolist()
        self.finished = both.finished_MBG[index, :, 0].tolist()
        self.entropy = float(both.entropies_MBGT[index, :, 0].sum())
        self.nlls = (-both.logprobs_MBGT[index, :, 0].sum(dim=-1) / lengths_B).tolist()
        self.passes: list[float] = []


def _chunk(
    environment: Environment, weights_MW: Tensor, seeds: Sequence[int], firsts: list[int], update: int, chunk: range
) -> list[_Counts]:
    prompts = [[environment.prompt(first + i) for i in chunk] for first in firsts]
    tokens = [[environment.prompt_tokens(p) for p in row] for row in prompts]
    tokens_MBP = torch.tensor(tokens, device=weights_MW.device)

    def completed(every: int, size: int, purpose: int) -> Completions:
        return complete(
            environment,
            weights_MW,
            [row[::every] for row in prompts],
            tokens_MBP[:, ::every].contiguous(),
            group_size=size,
            uniforms=seeded_uniforms(seeds, purpose, update, chunk.start),
            entropies=purpose == _SAMPLED,
            greedy_last=purpose == _SAMPLED,
        )

    both = completed(1, 2, _SAMPLED)
    rewards_MB2 = success_rewards(environment, prompts, both)
    counts = [_Counts(index, both, rewards_MB2) for index in range(len(seeds))]
    tried = completed(PASS_SHARE, PASS_SAMPLES, _PASSED)
    right_MB = (success_rewards(environment, [row[::PASS_SHARE] for row in prompts], tried) >= 1.0).sum(dim=2)
    for seed_counts, right_B in zip(counts, right_MB.tolist(), strict=True):
        seed_counts.passes = [pass_at_k(right, PASS_SAMPLES, PASS_K) for right in right_B]
    return counts


def _evaluation(chunks: Sequence[_Counts], update: int, greedy_seen: float) -> Evaluation:
    def mean(name: str) -> float:
        values = [value for chunk in chunks for value in getattr(chunk, name)]
        return storable(float(torch.tensor(values, dtype=torch.float64).mean()))

    greedy = [value for chunk in chunks for value in chunk.greedy]
    return Evaluation(
        update=update,
        sampled=mean("sampled"),
        greedy=mean("greedy"),
        greedy_seen=greedy_seen,
        pass_at_8=mean("passes"),
        entropy=storable(sum(chunk.entropy for chunk in chunks) / sum(sum(chunk.lengths) for chunk in chunks)),
        nll=mean("nlls"),
        length=mean("lengths"),
        finished=mean("finished"),
        calibration=calibration_error([chance for chunk in chunks for chance in chunk.chances], greedy),
    )
