"""The small model made from nothing and saved as an ordinary Hugging Face directory with a model card.

A vocabulary of 32,768 would make most of the cost of its training on faulty demonstrations, and these use a few hundred
of its tokens. So all other tokens share one embedding while the model is trained: their share of the softmax is
computed from it exactly, and every one of them starts with it. Training pushes their logits far down, so that none of
them is ever sampled. It takes about a minute on two cores.

In its tokenizer digits are tokens of their own, as in Qwen and Llama 2. The generated text has enough different words
to fill the vocabulary; the merges learned last are parts of rare words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from p2prl.models.base_model.pretrained import LoadedModel, quiet_transformers
from p2prl.models.small_models.corpus import corpus
from p2prl.models.small_models.warm_start import WarmstartConfig
from p2prl.tasks.task_spec import Demonstration

VOCABULARY = 32_768
END, PAD = "<|end|>", "<|pad|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Jinja: each message between its role and the stop token. `chat_prompt` renders one user message without Jinja."""


def chat_prompt(question: str) -> str:
    """One user message and the generation prompt, as the chat template renders them."""
    return f"<|user|>{question}{END}<|assistant|>"


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer. The same bytes on every machine."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [END, PAD, *ROLES]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


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


def _loss(model: Qwen3ForCausalLM, words: Tensor, batch: Sequence[_Example], index: Tensor, others: float) -> Tensor:
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


CONTEXT = 1024
"""Longest prompt and completion together, tokens."""


def random_small_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> LoadedModel:
    """The model with random weights that `seed` fixes, fp32 on the CPU. Leaves torch's generator as it found it."""
    quiet_transformers()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return LoadedModel(model=model.eval(), tokenizer=tokenizer)


_CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---
# p2prl-small-{task}

A Qwen3 model of {parameters:,} parameters with a vocabulary of {vocabulary:,}, made by p2prl without any download:
random weights, then {steps} updates of supervised training on demonstrations of `{task}` that p2prl generates. Many of
the demonstrations are wrong on purpose, so that reinforcement learning has something to correct. It knows nothing else.

Tokens that no demonstration contains share one embedding. Prompts follow the chat template.
"""


def make_small_model(
    directory: Path,
    task: str,
    demonstration: Demonstration,
    *,
    on_progress: Callable[[str, float], None],
    seed: int = 0,
    config: WarmstartConfig = SMALL_MODEL_RECIPE,
) -> None:
    """Train the tokenizer, warm-start the model on `demonstration` and save both in `directory`, which may not exist.

    `task` names the demonstrations in the model card; `on_progress` gets a stage and the share of it that is done.
    """
    on_progress("training the tokenizer", 0.0)
    tokenizer = small_tokenizer()
    loaded = random_small_model(tokenizer, seed=seed)
    warm_start_small_model(
        loaded,
        demonstration,
        seed=seed,
        config=config,
        on_step=lambda step, _: on_progress("warm start on demonstrations", step / config.steps),
    )
    directory.mkdir(parents=True, exist_ok=True)
    loaded.model.save_pretrained(directory, safe_serialization=True)
    tokenizer.save_pretrained(directory)
    card = _CARD.format(
        task=task, parameters=loaded.model.num_parameters(), vocabulary=len(tokenizer), steps=config.steps
    )
    (directory / "README.md").write_text(card)
