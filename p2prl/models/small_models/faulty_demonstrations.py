"""Supervised training of the small model on faulty demonstrations, in about a minute on two cores.

A vocabulary of 32,768 would make most of the cost, and the demonstrations use a few hundred of its tokens. So all other
tokens share one embedding while the model is trained: their share of the softmax is computed from it exactly, and
every one of them starts with it. Training pushes their logits far down, so that none of them is ever sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.small_models.bpe_tokenizer import END, chat_prompt
from p2prl.models.small_models.warm_start import WarmstartConfig
from p2prl.tasks.task_spec import Demonstration

SMALL_MODEL_RECIPE = WarmstartConfig(steps=300, batch=64, learning_rate=3e-3, warmup_steps=30)
"""Schedule of the small language model."""


@dataclass(frozen=True, slots=True)
class _Example:
    token_ids: list[int]
    prompt_length: int


def warm_start_small_model(
    loaded: LoadedModel,
    demonstration: Demonstration,
    *,
    seed: int = 0,
    config: WarmstartConfig = SMALL_MODEL_RECIPE,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train `loaded.model` in place on (question, completion) of the seeds from 0 on.

    `on_step` gets each finished update's number, from 1, and its mean loss in nats per token.
    """
    model = loaded.model
    count = config.steps * config.batch
    examples = _examples(loaded.tokenizer, [demonstration(seed * (1 << 32) + i) for i in range(count)])
    used = torch.tensor(sorted({token for example in examples for token in example.token_ids}))
    index = torch.full((model.config.vocab_size,), len(used), dtype=torch.int64)
    index[used] = torch.arange(len(used))
    embedding: Tensor = model.model.embed_tokens.weight
    body = [parameter for parameter in model.parameters() if parameter is not embedding]
    rest = torch.zeros_like(embedding[:1])
    words = torch.nn.Parameter(torch.cat([embedding.detach()[used], rest]))
    optimizer = torch.optim.AdamW([*body, words], lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    others = math.log(model.config.vocab_size - len(used))
    model.train()
    for step in range(config.steps):
        batch = examples[step * config.batch : (step + 1) * config.batch]
        for group in optimizer.param_groups:
            group["lr"] = config.rate_at(step)
        loss = _loss(model, words, batch, index, others)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_([*body, words], 1.0)
        optimizer.step()
        if on_step is not None:
            on_step(step + 1, loss.item())
    with torch.no_grad():
        embedding.copy_(words[index])
    model.eval()


def _examples(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> list[_Example]:
    prompts = tokenizer([chat_prompt(question) for question, _ in pairs], add_special_tokens=False)["input_ids"]
    completions = tokenizer([completion + END for _, completion in pairs], add_special_tokens=False)["input_ids"]
    return [_Example([*p, *c], len(p)) for p, c in zip(prompts, completions, strict=True)]


def _loss(model: Any, words: Tensor, batch: Sequence[_Example], index: Tensor, others: float) -> Tensor:
    """Mean negative log-prob of the completions' tokens over the complete vocabulary."""
    longest = max(len(example.token_ids) for example in batch)
    ids_NL = index[torch.tensor([e.token_ids + [0] * (longest - len(e.token_ids)) for e in batch])]
    mask_NL = torch.tensor([[e.prompt_length <= i < len(e.token_ids) for i in range(1, longest)] for e in batch])
    hidden_NLD = model.model(inputs_embeds=functional.embedding(ids_NL, words)).last_hidden_state[:, :-1]
    logits_MU = hidden_NLD[mask_NL] @ words.T
    # The last column stands for all tokens without an embedding of their own, `others` = log of their number.
    shares_U = torch.zeros(len(words))
    shares_U[-1] = others
    return functional.cross_entropy(logits_MU + shares_U, ids_NL[:, 1:][mask_NL])
