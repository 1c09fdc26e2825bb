"""The small model's tokenizer: byte-level BPE of 32,768 entries with a chat template, trained in seconds.

Digits are tokens of their own, as in Qwen and Llama 2. The generated text has enough different words to fill the
vocabulary; the merges learned last are parts of rare words.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from p2prl.models.small_models.corpus import corpus

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
