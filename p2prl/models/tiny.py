"""Real language models small enough for two cores: a transformers architecture and a fast tokenizer, both saveable.

`chain4` is the model of the staleness benchmark: width 48, two layers, two heads, about 56,000 parameters. Nothing
about it is special-cased anywhere: it is saved, loaded, sampled and trained as any other causal LM.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from p2prl.errors import ConfigError
from p2prl.models.loading import LoadedModel
from p2prl.tasks.chain4 import SYMBOLS

BOS, EOS, PAD = "<b>", "<e>", "<p>"


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyPreset:
    """The shape of a small model."""

    symbols: str
    """The characters of its language, one token each; `BOS`, `EOS` and `PAD` come on top."""
    width: int
    """Size of the residual stream."""
    feedforward: int
    """Inner size of the feed-forward layers."""
    layers: int
    """Number of decoder layers."""
    heads: int
    """Attention heads; divides `width`."""
    context: int
    """Most tokens of prompt and completion together."""


PRESETS = {
    "chain4": TinyPreset(symbols=SYMBOLS, width=48, feedforward=128, layers=2, heads=2, context=32),
}


def tiny_model(preset: str = "chain4", *, seed: int = 0) -> LoadedModel:
    """A small model with random weights that `seed` fixes, fp32 on the CPU, and its tokenizer.

    `ConfigError` when there is no such preset. Leaves torch's global generator as it found it.
    """
    shape = PRESETS.get(preset)
    if shape is None:
        raise ConfigError(f"no tiny model is called {preset!r}", remedy=f"choose one of {', '.join(PRESETS)}")
    tokenizer = character_tokenizer(shape.symbols)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.feedforward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=shape.context,
        initializer_range=0.02,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return LoadedModel(model=model.eval(), tokenizer=tokenizer)


def character_tokenizer(symbols: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per symbol, which puts `BOS` before a text; unknown characters become `PAD`."""
    vocabulary = {token: i for i, token in enumerate([*symbols, BOS, EOS, PAD])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    )
