"""A Qwen2 model of 31 million parameters with a vocabulary of 151,936, warm-started on flawed count-downs.

Only the thirteen characters of the task are in use. All other tokens start with an embedding of zero, so their logits
are zero too, and the softmax over the complete vocabulary can be trained without computing them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from p2prl_lab.long_run.count_down import SYMBOLS, demonstration

VOCABULARY = 151_936
_END, _PAD = "<|end|>", "<|endoftext|>"  # the second is added to any Qwen2 tokenizer that lacks it
_STEPS, _BATCH, _RATE = 300, 16, 3e-3


def make_counting_model(directory: Path, *, seed: int, on_step: Callable[[int, int, float], None]) -> None:
    """Train the model and save it with its tokenizer. `on_step` gets the step, the number of steps and the loss."""
    tokenizer = _tokenizer()
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=1_056,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config)
    used = len(SYMBOLS) + 2
    with torch.no_grad():
        model.model.embed_tokens.weight[used:].zero_()
    _train(model, tokenizer, used, seed, on_step)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _tokenizer() -> PreTrainedTokenizerFast:
    """One token for each character, then tokens that no text contains, up to the vocabulary of a real model."""
    names = [*SYMBOLS, _END, _PAD]
    names += [f"<|unused-{i}|>" for i in range(VOCABULARY - len(names))]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=_PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_END, pad_token=_PAD, clean_up_tokenization_spaces=False
    )


def _train(
    model: Any, tokenizer: PreTrainedTokenizerFast, used: int, seed: int, on_step: Callable[[int, int, float], None]
) -> None:
    embedding = model.model.embed_tokens.weight
    body = [p for p in model.parameters() if p is not embedding]
    words = torch.nn.Parameter(embedding[:used].detach().clone())
    optimizer = torch.optim.AdamW([*body, words], lr=_RATE, betas=(0.9, 0.99), weight_decay=0.0)
    for step in range(_STEPS):
        rate = _RATE * min(1.0, (step + 1) / 40) * (0.55 + 0.45 * math.cos(math.pi * step / _STEPS))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = _loss(model, words, _rows(tokenizer, (seed << 40) + step * _BATCH))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_([*body, words], 1.0)
        optimizer.step()
        on_step(step + 1, _STEPS, float(loss.detach()))
    with torch.no_grad():
        embedding[:used] = words


def _rows(tokenizer: PreTrainedTokenizerFast, first: int) -> list[tuple[int, list[int]]]:
    """(prompt length, tokens) of a batch of demonstrations."""
    rows = []
    for number in range(first, first + _BATCH):
        prompt, completion = demonstration(number)
        prompt_ids: list[int] = tokenizer(prompt)["input_ids"]
        rows.append((len(prompt_ids), [*prompt_ids, *tokenizer(completion)["input_ids"], tokenizer.eos_token_id]))
    return rows


def _loss(model: Any, words: Tensor, rows: list[tuple[int, list[int]]]) -> Tensor:
    """Mean negative log-prob of the completions' tokens over the complete vocabulary."""
    longest = max(len(ids) for _, ids in rows)
    ids_NL = torch.tensor([ids + [0] * (longest - len(ids)) for _, ids in rows])
    mask_NL = torch.tensor([[prompt <= i < len(ids) for i in range(longest)] for prompt, ids in rows])[:, 1:]
    hidden_NLD = model.model(inputs_embeds=torch.nn.functional.embedding(ids_NL, words)).last_hidden_state[:, :-1]
    logits_NLU = hidden_NLD @ words.T
    unused_NL1 = torch.full((*logits_NLU.shape[:2], 1), math.log(VOCABULARY - len(words)))
    logprobs_NLU = torch.log_softmax(torch.cat([logits_NLU, unused_NL1], dim=-1), dim=-1)
    picked_NL = logprobs_NLU.gather(2, ids_NL[:, 1:, None])[:, :, 0]
    return -(picked_NL * mask_NL).sum() / mask_NL.sum()
