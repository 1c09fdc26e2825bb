"""Real language models small enough for two cores: a transformers architecture and a fast tokenizer, both saveable.

A task gives the alphabet and the shape (`SmallModel`). chain4's is the model of the staleness benchmark: width 48, two
layers, two heads, 59,040 parameters. GPT-2's architecture, because at this size it learns the task in half the updates
of Llama's and runs faster. No code special-cases it: it is saved, loaded, sampled and trained like any other causal LM.
"""

from __future__ import annotations

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from p2prl.errors import ConfigError
from p2prl.models.base_model.pretrained import LoadedModel, quiet_transformers
from p2prl.tasks.task_registry import task_by_name
from p2prl.tasks.task_spec import SmallModel

BOS, EOS, PAD = "<b>", "<e>", "<p>"


def tiny_model(task: str = "chain4", *, seed: int = 0) -> LoadedModel:
    """A task's small model with random weights that `seed` fixes, fp32 on the CPU, and its tokenizer.

    `ConfigError` when there is no such task, or it has no small model. Leaves torch's global generator as it found it.
    """
    shape = task_by_name(task).small_model
    if shape is None:
        raise ConfigError(f"task {task!r} has no small model", remedy="Choose a model with --model DIRECTORY.")
    return shaped_model(shape, seed=seed)


def shaped_model(shape: SmallModel, *, seed: int = 0) -> LoadedModel:
    """A model of this shape, as `tiny_model` makes them."""
    quiet_transformers()
    tokenizer = character_tokenizer(shape.symbols)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=shape.context,
        n_embd=shape.width,
        n_inner=shape.feedforward,
        n_layer=shape.layers,
        n_head=shape.heads,
        activation_function="relu",
        resid_pdrop=0.0,  # dropout would make the training log-probs differ from the sampler's
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.1,  # with the usual .02 a width this small learns nothing for hundreds of updates
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config)
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
