"""The warm start of a benchmark: many seeds learn flawed demonstrations side by side; kept on disk for the next run.

The recipe of `p2prl/models/warm_start.py` on the stacked decoder. Each seed has its own initial weights and its own
demonstrations, so that seeds differ in everything a training run may differ in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from p2prl.bench.results.code_digest import code_digest
from p2prl.bench.training.environments import Environment
from p2prl.bench.training.stacked_adam import StackedAdam
from p2prl.bench.training.stacked_decoder import completion_logprobs, initial_weights
from p2prl.errors import IntegrityError

_BATCH = 128
_WARMUP_STEPS = 40
_SEEDS_PER_RUN = 1 << 40
"""Demonstrations of different seeds never share a prompt seed."""


def warm_weights(
    subject: Environment, seeds: Sequence[int], cache: Path, *, on_step: Callable[[float], None] | None = None
) -> Tensor:
    """Weights (M, W) of each seed after its warm start, from files in `cache` where they are there."""
    cache.mkdir(parents=True, exist_ok=True)
    missing = [seed for seed in seeds if not warm_path(subject, seed, cache).exists()]
    if missing:
        trained = warm_start(subject, missing, on_step=on_step)
        for seed, weights in zip(missing, trained, strict=True):
            path = warm_path(subject, seed, cache)
            part = path.with_suffix(".part")
            save_file({"weights": weights.contiguous()}, part)
            part.rename(path)  # an interrupted write leaves no half file under the final name
    return torch.stack([_load(subject, warm_path(subject, seed, cache)) for seed in seeds])


def warm_start(
    subject: Environment,
    seeds: Sequence[int],
    *,
    steps: int | None = None,
    on_step: Callable[[float], None] | None = None,
) -> Tensor:
    """Train fresh weights of each seed on its demonstrations; (M, W). `steps` cuts the subject's own number short."""
    weights_MW = torch.stack([initial_weights(subject.shape, seed) for seed in seeds]).requires_grad_()
    optimiser = StackedAdam.fresh(weights_MW.detach())
    for step in range(subject.warm_steps if steps is None else steps):
        prompts, completions, mask = _demonstrations(subject, seeds, step)
        logprobs = completion_logprobs(subject.shape, weights_MW, prompts, completions)
        losses_M = -torch.where(mask, logprobs, 0.0).sum(dim=(1, 2, 3)) / mask.sum(dim=(1, 2, 3))
        (gradient_MW,) = torch.autograd.grad(losses_M.sum(), weights_MW)
        rate_M = torch.full((len(seeds),), _rate(subject, step))
        optimiser.step(weights_MW.detach(), gradient_MW, number=step + 1, rate_M=rate_M)
        if on_step is not None:
            on_step((step + 1) / subject.warm_steps)
    return weights_MW.detach()


def _rate(subject: Environment, step: int) -> float:
    if step < _WARMUP_STEPS:
        return subject.warm_learning_rate * (step + 1) / _WARMUP_STEPS
    done = (step - _WARMUP_STEPS) / max(1, subject.warm_steps - _WARMUP_STEPS)
    return subject.warm_learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


def _demonstrations(subject: Environment, seeds: Sequence[int], step: int) -> tuple[Tensor, Tensor, Tensor]:
    prompts, completions = [], []
    for seed in seeds:
        for i in range(_BATCH):
            prompt, completion = subject.demonstration(seed * _SEEDS_PER_RUN + step * _BATCH + i)
            prompts.append(subject.prompt_tokens(prompt))
            completions.append([*subject.encode(completion), subject.end_token])
    longest = max(map(len, completions))
    padded = [row + [subject.end_token] * (longest - len(row)) for row in completions]
    lengths = torch.tensor([len(row) for row in completions])
    mask = (torch.arange(longest) < lengths.unsqueeze(1)).view(len(seeds), _BATCH, 1, longest)
    return (
        torch.tensor(prompts).view(len(seeds), _BATCH, -1),
        torch.tensor(padded).view(len(seeds), _BATCH, 1, longest),
        mask,
    )


def warm_path(subject: Environment, seed: int, cache: Path) -> Path:
    """Where a seed's warm start is kept. The digest of its code is part of the name: other code makes it anew."""
    return cache / f"{subject.task.name}-{seed}-{code_digest(__name__, *subject.code)}.safetensors"


def _load(subject: Environment, path: Path) -> Tensor:
    try:
        weights: Tensor = load_file(path)["weights"]
    except (OSError, KeyError, SafetensorError) as error:
        raise IntegrityError(f"{path} is not a warm start", remedy="Delete it: it is made anew.") from error
    if weights.shape != (subject.shape.size(),):
        raise IntegrityError(f"{path} fits another decoder", remedy="Delete it: it is made anew.")
    return weights
