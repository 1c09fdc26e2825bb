"""Warm starts of benchmarks: seeds learn flawed demonstrations side by side; results are cached on disk.

The recipe of `p2prl/models/small_models/warm_start.py` on the stacked decoder. Each seed has its own initial weights
and its own demonstrations, so that seeds cover all the variation between training runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from p2prl.errors import IntegrityError, MachineError, require
from p2prl_lab.bench.training.decoder_shape import initial_weights
from p2prl_lab.bench.training.environments import Environment
from p2prl_lab.bench.training.stacked_adam import StackedAdam
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs

RESULT_VERSION = 1
"""Incremented when warm starts change: stored ones of an older version are not reused."""

_DIGEST_NAMES = {(1, 1): "6434ef2a65a189f6"}
"""(version here, version of the environment) → digest that names the same warm start in files of commit 3812427."""

SEED_LIMIT = 1 << 20
"""Seeds must be below this, or training prompts would overlap those of the evaluations."""

UNWRITABLE = "Set --out to a writable folder on a disk with free space."
"""Remedy when results cannot be written."""

_WARMUP_STEPS = 40
_SEEDS_PER_RUN = 1 << 40
"""Demonstrations of different seeds never share a prompt seed."""


def require_first_seed(first: int, seeds: int) -> None:
    """Raise ConfigError, with the legal range, unless all `seeds` seeds from `first` on are valid."""
    highest = SEED_LIMIT - seeds
    require("seed", first, 0 <= first <= highest, f"0 to {highest}")


def warm_start_of(
    environment: Environment,
    seeds: Sequence[int],
    out: Path,
    *,
    device: torch.device | None = None,
    on_step: Callable[[float], None] | None = None,
) -> Tensor:
    """Weights (M, W) of each seed after its warm start, cached under `out`, on a device: the CPU unless it says
    otherwise.

    Trains only the seeds that are not cached yet. MachineError when `out` is not writable.
    """
    cache = out / "warm"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        missing = [seed for seed in seeds if not warm_path(environment, seed, cache).exists()]
        if missing:
            trained = warm_start(environment, missing, device=device, on_step=on_step)
            for seed, weights in zip(missing, trained.cpu(), strict=True):
                path = warm_path(environment, seed, cache)
                part = path.with_suffix(f".{os.getpid()}.part")  # several processes may make the same one
                save_file({"weights": weights.contiguous()}, part)
                part.rename(path)  # an interrupted write leaves no partial file under the final name
        return torch.stack([_load(environment, warm_path(environment, seed, cache)) for seed in seeds]).to(device)
    except OSError as error:
        raise MachineError(f"cannot write to {out}: {error.strerror}", remedy=UNWRITABLE) from error


def warm_start(
    environment: Environment,
    seeds: Sequence[int],
    *,
    steps: int | None = None,
    device: torch.device | None = None,
    on_step: Callable[[float], None] | None = None,
) -> Tensor:
    """Train new weights (M, W) of each seed on its demonstrations. `steps` overrides the environment's number."""
    weights_MW = torch.stack([initial_weights(environment.shape, seed) for seed in seeds]).to(device).requires_grad_()
    optimizer = StackedAdam.fresh(weights_MW.detach())
    for step in range(environment.warm_steps if steps is None else steps):
        prompts, completions, mask = (part.to(device) for part in _demonstrations(environment, seeds, step))
        logprobs = completion_logprobs(environment.shape, weights_MW, prompts, completions)
        losses_M = -torch.where(mask, logprobs, 0.0).sum(dim=(1, 2, 3)) / mask.sum(dim=(1, 2, 3))
        (gradient_MW,) = torch.autograd.grad(losses_M.sum(), weights_MW)
        rate_M = torch.full((len(seeds),), _rate(environment, step), device=device)
        optimizer.step(weights_MW.detach(), gradient_MW, number=step + 1, rate_M=rate_M)
        if on_step is not None:
            on_step((step + 1) / environment.warm_steps)
    return weights_MW.detach()


def _rate(environment: Environment, step: int) -> float:
    if step < _WARMUP_STEPS:
        return environment.warm_learning_rate * (step + 1) / _WARMUP_STEPS
    done = (step - _WARMUP_STEPS) / max(1, environment.warm_steps - _WARMUP_STEPS)
    return environment.warm_learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


def _demonstrations(environment: Environment, seeds: Sequence[int], step: int) -> tuple[Tensor, Tensor, Tensor]:
    size, prompts, completions = environment.warm_batch, [], []
    for seed in seeds:
        for i in range(size):
            prompt, completion = environment.demonstration(seed * _SEEDS_PER_RUN + step * size + i)
            prompts.append(environment.prompt_tokens(prompt))
            completions.append([*environment.encode(completion), environment.end_token])
    longest = max(map(len, completions))
    padded = [row + [environment.end_token] * (longest - len(row)) for row in completions]
    lengths = torch.tensor([len(row) for row in completions])
    mask = (torch.arange(longest) < lengths.unsqueeze(1)).view(len(seeds), size, 1, longest)
    return (
        torch.tensor(prompts).view(len(seeds), size, -1),
        torch.tensor(padded).view(len(seeds), size, 1, longest),
        mask,
    )


def warm_path(environment: Environment, seed: int, cache: Path) -> Path:
    """File of a seed's warm start. Its name includes the version, so that each version has its own file."""
    version = RESULT_VERSION, environment.result_version
    stem = f"{environment.warm_name}-{seed}"
    earlier = cache / f"{stem}-{_DIGEST_NAMES.get(version, 'none')}.safetensors"
    named = f"{stem}-v{version[0]}.{version[1]}" + (f"-{environment.origin}" if environment.origin else "")
    return earlier if earlier.exists() else cache / f"{named}.safetensors"


def _load(environment: Environment, path: Path) -> Tensor:
    try:
        weights: Tensor = load_file(path)["weights"]
    except (OSError, KeyError, SafetensorError) as error:
        raise IntegrityError(f"{path} is not a warm start", remedy="Delete it; it will be recreated.") from error
    if weights.shape != (environment.shape.size(),):
        raise IntegrityError(f"{path} belongs to another decoder", remedy="Delete it; it will be recreated.")
    return weights
