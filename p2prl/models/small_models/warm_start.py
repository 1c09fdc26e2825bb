"""Supervised warm start of a task's small model on flawed demonstrations, from random weights, in seconds.

The recipe is fixed so that every seed ends at the same place. On chain4: about .36 of the samples right, greedy
decoding a little better, with a shortcut and a wrong rule that reinforcement learning has to undo
(`p2prl/tasks/chain4.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from p2prl.errors import ConfigError, LocalProtocolError
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.logprobs.policy_logprobs import completion_logprobs, pad_right
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.tasks.environment import next_message
from p2prl.tasks.task_spec import Demonstration, TurnsDemonstration


@dataclass(frozen=True, slots=True)
class DemonstrationRows:
    """A batch of demonstrations."""

    prompts: list[tuple[int, ...]]
    completions: list[tuple[int, ...]]
    """With all stop tokens and messages."""
    learned: list[tuple[bool, ...]]
    """For each token of a completion, whether the model says it."""


def demonstration_rows(
    codec: TextCodec, demonstration: Demonstration | TurnsDemonstration, seeds: Sequence[int]
) -> DemonstrationRows:
    """The demonstrations of these seeds. Texts of one turn lose the special token that begins a text."""
    end = (min(codec.stop_ids),)
    if isinstance(demonstration, TurnsDemonstration):
        return _of_turns(codec, demonstration, seeds, end)
    pairs = [demonstration(seed) for seed in seeds]
    prompts = codec.encode_all([prompt for prompt, _ in pairs])
    completions = [ids[1:] + end for ids in codec.encode_all([completion for _, completion in pairs])]
    return DemonstrationRows(prompts, completions, [(True,) * len(ids) for ids in completions])


def _of_turns(
    codec: TextCodec, demonstration: TurnsDemonstration, seeds: Sequence[int], end: tuple[int, ...]
) -> DemonstrationRows:
    environment = demonstration.environment
    episodes = [(seed, demonstration.turns(seed)) for seed in seeds]
    prompts = codec.encode_all([environment.opening(seed) for seed, _ in episodes])
    texts: dict[str, tuple[int, ...]] = {}  # an environment repeats itself

    def encode(text: str) -> tuple[int, ...]:
        if text not in texts:
            texts[text] = codec.encode(text, rendered=True)
        return texts[text]

    completions, learned = [], []
    for seed, turns in episodes:
        ids: tuple[int, ...] = ()
        mask: tuple[bool, ...] = ()
        for number, turn in enumerate(turns, 1):
            said = encode(turn) + end
            ids, mask = ids + said, mask + (True,) * len(said)
            if number == len(turns):
                break
            message = next_message(environment, seed, turns[:number])
            if message is None:
                raise LocalProtocolError(f"a demonstration of {environment.name} goes on after its end")
            heard = encode(message)
            ids, mask = ids + heard, mask + (False,) * len(heard)
        completions.append(ids)
        learned.append(mask)
    return DemonstrationRows(prompts, completions, learned)


_SEEDS_PER_RUN = 1 << 40
"""Demonstrations of different runs never share a seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmstartConfig:
    """Training schedule of the warm start."""

    steps: int = 600
    """Optimizer updates; at least 1."""
    batch: int = 128
    """Demonstrations in an update, each used once; at least 1."""
    learning_rate: float = 4e-3
    """Peak of AdamW's learning rate; above 0. It falls to a tenth of it along a half cosine."""
    warmup_steps: int = 40
    """Updates in which the learning rate grows from 0 to its peak."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1 or self.warmup_steps < 0 or not self.learning_rate > 0:
            raise ConfigError("a warm start needs steps, a batch and a learning rate above 0")

    def rate_at(self, step: int) -> float:
        """The learning rate of update `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


def warm_start(
    loaded: LoadedModel,
    demonstration: Demonstration | TurnsDemonstration,
    *,
    seed: int = 0,
    config: WarmstartConfig | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train `loaded.model` in place on the demonstrations that `seed` picks.

    `on_step` gets each finished update's number, from 1, and its mean loss in nats per token. On one machine the result
    depends only on the model, the demonstrations, the seed and the configuration.
    """
    config = config or WarmstartConfig()
    model, codec = loaded.model, TextCodec(loaded.tokenizer, loaded.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
    model.train()
    for step in range(config.steps):
        first = seed * _SEEDS_PER_RUN + step * config.batch
        rows = demonstration_rows(codec, demonstration, range(first, first + config.batch))
        for group in optimizer.param_groups:
            group["lr"] = config.rate_at(step)
        logprobs_NT, _ = completion_logprobs(model, rows.prompts, rows.completions, 1.0)
        learned_NT = pad_right(rows.learned, logprobs_NT.device).to(logprobs_NT.dtype)
        loss = -(logprobs_NT * learned_NT).sum() / learned_NT.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if on_step is not None:
            on_step(step + 1, loss.item())
    model.eval()
