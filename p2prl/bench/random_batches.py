"""Batches of random completions, shared by the benchmarks that train."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.policy_gradient import BatchLogprobs
from p2prl.learner.training.training_group import TrainingGroup, training_group

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PROMPT_TOKENS = 16

_DRIFT_NATS = 0.1
"""Spread of the difference between policy and behavior log-probs of a token, as for rollouts some updates old."""


def random_batch(
    model: PreTrainedModel, *, groups: int, completions: int, tokens: int, rule: MicroBatchRule, seed: int
) -> list[TrainingGroup]:
    """A batch of random tokens with behavior log-probs near the model's, and rewards that differ in every group.

    Completions are between half of `tokens` and `tokens` long; the first is of full length.
    """
    generator = torch.Generator().manual_seed(seed)
    vocabulary = model.config.vocab_size

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, vocabulary, (count,), generator=generator).tolist())

    rows = []
    for _ in range(groups):
        prompt = draw(_PROMPT_TOKENS)
        for number in range(completions):
            shorter = 0 if number == 0 else int(torch.randint(0, tokens // 2 + 1, (1,), generator=generator))
            rows.append((prompt, draw(tokens - shorter)))
    logprobs_NT = BatchLogprobs(model, temperature=1.0).logprobs(rows, rule)
    drift_NT = _DRIFT_NATS * torch.randn(logprobs_NT.shape, generator=generator)
    behavior_NT = (logprobs_NT.cpu() + drift_NT).clamp(max=0.0)
    made = []
    for first in range(0, len(rows), completions):
        part = rows[first : first + completions]
        rewards = torch.rand(completions, generator=generator).tolist()
        behavior = [row[: len(ids)].tolist() for row, (_, ids) in zip(behavior_NT[first:], part, strict=False)]
        made.append(
            training_group(
                prompt_ids=part[0][0],
                completions=tuple(ids for _, ids in part),
                behavior_logprobs=tuple(map(tuple, behavior)),
                rewards=tuple(rewards),
                staleness=1,
            )
        )
    return made
