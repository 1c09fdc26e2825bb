"""Classifiers with one label and random weights, saved as a researcher would save a reward model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    PreTrainedTokenizerFast,
)

from p2prl.models.small_models.tiny_models import BOS, EOS, tiny_model

CLASSES = {
    ("gpt2", "orm"): GPT2ForSequenceClassification,
    ("gpt2", "prm"): GPT2ForTokenClassification,
    ("bert", "orm"): BertForSequenceClassification,
    ("bert", "prm"): BertForTokenClassification,
}


def classifier(folder: Path, kind: str, *, family: str = "gpt2", labels: int = 1, seed: int = 5) -> tuple[Any, Any]:
    """Save a classifier that reads chain4's symbols; (model, tokenizer)."""
    base = tiny_model("chain4", seed=seed)
    tokenizer: PreTrainedTokenizerFast = base.tokenizer
    config: Any = type(base.model.config).from_dict(base.model.config.to_dict() | {"num_labels": labels})
    if family == "bert":
        tokenizer.backend_tokenizer.post_processor = _around(tokenizer)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=32,
            num_labels=labels,
        )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = CLASSES[family, kind](config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def _around(tokenizer: PreTrainedTokenizerFast) -> Any:
    """A token before a text and one after it, as BERT's tokenizer puts them."""
    from tokenizers.processors import TemplateProcessing

    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in (BOS, EOS)]
    return TemplateProcessing(single=f"{BOS} $A {EOS}", special_tokens=ids)
