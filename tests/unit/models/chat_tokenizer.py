"""A tokenizer of printable characters with a chat template, and a directory with a small model that has it."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

from transformers import GPT2Config, GPT2LMHeadModel

from p2prl.models.small_models.tiny_models import BOS, character_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""Writes the first token itself, as most do."""

RENDERED = f"{BOS}[user]Hello\n[assistant]"


def chat_tokenizer(template: str | None = TEMPLATE) -> Any:
    """One token a character; a text gets `BOS` before it unless it asks for none."""
    tokenizer = character_tokenizer(string.digits + string.ascii_letters + string.punctuation + " \n")
    tokenizer.chat_template = template
    return tokenizer


def save_chat_model(directory: Path, *, template: str | None = TEMPLATE, context: int = 128) -> Path:
    """A model directory of a few thousand parameters."""
    tokenizer = chat_tokenizer(template)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=context,
        n_embd=8,
        n_layer=1,
        n_head=1,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    GPT2LMHeadModel(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
