"""Versions of a policy trained by reinforcement learning at the learning rate of a large model: real gradients.

A stacked decoder of a few million weights learns a task from flawed demonstrations and then from its own completions,
with a group-relative loss, in float32; after each update its weights are rounded to bf16, as a learner publishes them.
Versions are cached on disk, so that the codec can be measured again without training again.

Shape legend: W weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import loss_by_name
from p2prl.algorithms.objective import build_objective
from p2prl.errors import MachineError
from p2prl_lab.bench.training.environments import Environment, environment_by_name
from p2prl_lab.bench.training.grading import success_rewards
from p2prl_lab.bench.training.seeded_noise import seeded_uniforms
from p2prl_lab.bench.training.stacked_adam import StackedAdam
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs
from p2prl_lab.bench.training.stacked_sampling import sample
from p2prl_lab.bench.training.warm_start import warm_start

LEARNING_RATE = 1e-6
"""Constant. The learning rate of reinforcement learning of large models."""

SETTLING_UPDATES = 10
"""Updates before the first version, in which Adam's moments fill: a run publishes thousands of versions after them."""

_WARM_STEPS = 40
_WARM_RATE = 2e-3
_BETA2 = 0.999
"""As in the training of large models; the benchmarks of small ones use .99."""
_LOSS = "grpo"
_GROUP = 8
_PROMPTS_FROM = 1 << 30
"""Seed of the first prompt, beyond those of the demonstrations."""
_SAMPLING = 1


def trained_versions(
    name: str, updates: int, seed: int, out: Path, *, on_progress: Callable[[str, float], None] | None = None
) -> NDArray[np.uint16]:
    """Versions 0..`updates` of a policy, bf16 words (`updates` + 1, W), trained or read from a cache under `out`.

    `name` is an environment such as `chain4@240x6`. `ConfigError` for an unknown one.
    """
    environment = replace(environment_by_name(name), warm_learning_rate=_WARM_RATE, warm_steps=_WARM_STEPS)
    path = out / f"versions-{name}-{updates}-{seed}.npy"
    tell = on_progress or (lambda *_: None)
    try:
        if path.is_file():
            cached: NDArray[np.uint16] = np.load(path, allow_pickle=False, mmap_mode="r")
            return cached
        out.mkdir(parents=True, exist_ok=True)
        versions = np.stack(_train(environment, updates, seed, tell))
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.save(file, versions, allow_pickle=False)
        part.rename(path)  # an interrupted write leaves no partial file under the final name
    except OSError as error:
        raise MachineError(f"cannot write to {out}: {error}", remedy="Choose another folder with --out.") from error
    return versions


def _train(
    environment: Environment, updates: int, seed: int, tell: Callable[[str, float], None]
) -> list[NDArray[np.uint16]]:
    start = warm_start(environment, [seed], on_step=lambda done: tell("learning from demonstrations", done))
    weights_1W = start.requires_grad_()
    optimizer = StackedAdam.fresh(weights_1W.detach(), beta2=_BETA2)
    versions = []
    for update in range(SETTLING_UPDATES + updates + 1):
        if update >= SETTLING_UPDATES:
            versions.append(_words_of(weights_1W))
        if len(versions) > updates:
            break
        tell("training", update / (SETTLING_UPDATES + updates))
        gradient_1W = _gradient(environment, weights_1W, update, seed)
        optimizer.step(weights_1W.detach(), gradient_1W, number=update + 1, rate_M=torch.full((1,), LEARNING_RATE))
    return versions


def _gradient(environment: Environment, weights_1W: Tensor, update: int, seed: int) -> Tensor:
    """Gradient of one batch, sampled with these weights."""
    count = environment.prompts_per_update
    first = _PROMPTS_FROM + update * count
    prompts = [[environment.task.prompt(first + i) for i in range(count)]]
    tokens_1BP = torch.tensor([[environment.prompt_tokens(prompt) for prompt in row] for row in prompts])
    completions = sample(
        environment.shape,
        weights_1W.detach(),
        tokens_1BP,
        group_size=_GROUP,
        max_new_tokens=environment.max_new_tokens,
        end_token=environment.end_token,
        uniforms=seeded_uniforms([seed], _SAMPLING, update),
    )
    rewards_1BG = success_rewards(environment, prompts, completions)
    logprobs_1BGT = completion_logprobs(environment.shape, weights_1W, tokens_1BP, completions.tokens_MBGT)
    objective = build_objective(loss_by_name(_LOSS))
    mask_BGT = completions.mask_MBGT[0]
    advantages_BG = objective.advantages(rewards_1BG[0], mask_BGT.sum(dim=-1)).advantages_BG
    batch = RolloutBatch(
        behavior_logprobs_BGT=completions.logprobs_MBGT[0],
        mask_BGT=mask_BGT,
        advantages_BG=advantages_BG,
        staleness_BG=torch.zeros_like(advantages_BG, dtype=torch.int64),
    )
    (gradient_1W,) = torch.autograd.grad(objective.loss(logprobs_1BGT[0], batch).loss, weights_1W)
    return gradient_1W


def _words_of(weights_1W: Tensor) -> NDArray[np.uint16]:
    words: NDArray[np.uint16] = weights_1W.detach()[0].to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    return words.copy()
