"""Tokenizers of the families that models have, trained here, each with control tokens that are and are not special."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

BEGIN, END, USER = "<s>", "</s>", "<|user|>"
MARK = "<｜Assistant｜>"
"""Not special, as in DeepSeek-R1's tokenizer; a control token because the run writes it around messages."""

CONTROL = (BEGIN, END, USER, MARK)
_UNKNOWN = "<unk>"
_SIGNS = "</s>|ueraAint｜<>[] .,?!xyz0123456789"
_CORPUS = [
    "the user says that the assistant is asleep", "use the sun, <b>not</b> the rain", "is it | or /s or s> or <s ?",
    "a user asks: 12 + 30?", f"{_SIGNS} {_SIGNS}", "  two  spaces", " ".join(_SIGNS),
]  # fmt: skip


def _trained(model: Any, trainer: Any, **parts: Any) -> Tokenizer:
    tokenizer = Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(_CORPUS * 20, trainer)
    return tokenizer


def _bpe(**parts: Any) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet() if isinstance(parts["decoder"], decoders.ByteLevel) else []
    special = [_UNKNOWN, BEGIN, END]
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    return _trained(models.BPE(unk_token=_UNKNOWN), trainer, **parts)


def _unigram() -> Tokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=120, unk_token=_UNKNOWN, special_tokens=[_UNKNOWN, BEGIN, END], show_progress=False
    )
    parts = {"pre_tokenizer": pre_tokenizers.Metaspace(), "decoder": decoders.Metaspace()}
    return _trained(models.Unigram(), trainer, **parts)


def _word_piece() -> Tokenizer:
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=[_UNKNOWN, BEGIN, END], show_progress=False, initial_alphabet=list(_SIGNS)
    )
    parts = {"pre_tokenizer": pre_tokenizers.WhitespaceSplit(), "decoder": decoders.WordPiece(cleanup=False)}
    return _trained(models.WordPiece(unk_token=_UNKNOWN), trainer, **parts)


def _sentencepiece_decoder() -> Any:
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def _metaspace(scheme: str) -> Tokenizer:
    metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return _bpe(pre_tokenizer=metaspace, decoder=_sentencepiece_decoder())


MADE = {
    "byte-level": lambda: _bpe(
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), decoder=decoders.ByteLevel()
    ),
    "metaspace, first": lambda: _metaspace("first"),
    "metaspace, always": lambda: _metaspace("always"),
    "prepended": lambda: _bpe(
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        decoder=_sentencepiece_decoder(),
    ),
    "unigram": _unigram,
    "word piece": _word_piece,
}
"""Tokenizers by family. `prepended` is Llama 2's as it was converted first."""

FAITHFUL = [family for family in MADE if family != "word piece"]
"""Families whose tokens are the text, white space included."""


@cache
def _rules(family: str) -> str:
    """Training is not the same twice, where tokens are equally good."""
    rules: str = MADE[family]().to_str()
    return rules


def bare_tokenizer(family: str) -> Tokenizer:
    """The tokenizer of a family that looks for no control tokens in texts."""
    rules = json.loads(_rules(family)) | {"added_tokens": []}
    return Tokenizer.from_str(json.dumps(rules))


def family_tokenizer(family: str) -> Any:
    """transformers' tokenizer of a family, with `BEGIN` before every text."""
    backend = Tokenizer.from_str(_rules(family))
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (BEGIN, END, USER)])
    backend.add_tokens([AddedToken(MARK, special=False, normalized=False)])
    begin = (BEGIN, backend.token_to_id(BEGIN))
    backend.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[begin])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BEGIN, eos_token=END, unk_token=_UNKNOWN)
