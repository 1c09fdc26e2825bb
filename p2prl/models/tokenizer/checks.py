"""Parts that the tokenizer.json of a run may have: how much they lengthen a text, and how many tokens they add.

Normalizers and pre-tokenizers rewrite a text one after the other, so their growth multiplies: 40 steps `"1" -> "11"`
turn one character into 2^40. Every kind of step has the most characters it can make of one, and the product is bounded.
Kinds that are not listed are refused. All of it is checked before the library sees any. Every fault is the learner's:
`RemoteProtocolError`.
"""

from __future__ import annotations

import re
from typing import Any

from p2prl.errors import RemoteProtocolError
from p2prl.models.tokenizer.split_patterns import PatternError, check_pattern
from p2prl.models.tokenizer.tables import check_tables

MAX_GROWTH = 128
"""Characters that the steps may make of one, at worst: a text of n characters becomes at most (n + 1) · 128. Byte-level
tokenizers after NFC have 24, BERT's has 24, those in the manner of sentencepiece 2 or 4."""

MAX_STEPS = 16
"""Steps of a section, nested sequences counted: each reads the whole text. Real sections have up to eight."""

MAX_LITERAL = 64
"""Characters of a text that a step looks for or puts in its place; real ones have one or two, `▁` and spaces."""

MAX_AFFIX = 16
"""Characters of a prefix or suffix that the model puts around each piece of a text, such as `##` and `</w>`."""

MAX_ADDED_TOKENS = 4
"""Special tokens a tokenizer may put around a text; real ones add a beginning, an end, or both."""

_NORMALIZERS: dict[str, float] = {
    "BertNormalizer": 24,  # spaces around an ideograph 3, decomposition 4, lower case 2
    "ByteLevel": 4,  # one for each UTF-8 byte
    "Lowercase": 2,
    "NFC": 3,
    "NFD": 4,
    "NFKC": 18,
    "NFKD": 18,
    "Nmt": 1,
    "Strip": 1,
    "StripAccents": 1,
}
"""Most characters made of one. `Precompiled` is missing: its table can hold anything, and a damaged one makes the
library panic, which is no `Exception`."""

_PRE_TOKENIZERS: dict[str, float] = {
    "BertPreTokenizer": 1,
    "ByteLevel": 8,  # a space before a piece of one character, then four bytes each
    "CharDelimiterSplit": 1,
    "Digits": 1,
    "Metaspace": 2,  # a mark before a piece of one character
    "Punctuation": 1,
    "Split": 1,
    "UnicodeScripts": 1,
    "Whitespace": 1,
    "WhitespaceSplit": 1,
}

_PATTERN = re.compile(
    r"((\\[sSdDwWnrt]|\\[^\w\s]|\[\^?[^\[\]\\&^]+\]|[^\\\[\](){}*+?|^$])(\+|\{[1-9]\d?,\d{0,2}\})?){1,8}"
)
"""Regular expressions a `Replace` may have, such as ` {2,}` and `\\s+`: each part matches a character or more."""

_DECODERS = frozenset({"BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"})
_POST_PROCESSORS = frozenset({"BertProcessing", "ByteLevel", "RobertaProcessing", "TemplateProcessing"})

_MEMBERS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
"""Sections of tokenizer.json, and the key of a `Sequence` of each."""


def check_tokenizer(tokenizer: dict[str, Any]) -> None:
    """Refuse a decoded tokenizer.json that could multiply a text, or panic."""
    growth = text_growth(tokenizer)
    if growth > MAX_GROWTH:
        raise _refused(f"its steps make up to {growth:.4g} characters of one, more than {MAX_GROWTH}")
    for step in _steps(tokenizer, "decoder"):
        _check_decoder(step)
    _check_post_processors(_steps(tokenizer, "post_processor"))
    check_tables(tokenizer)
    model = tokenizer["model"]
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(_text(model.get(key) or "")) > MAX_AFFIX:
            raise _refused(f"{key} is longer than {MAX_AFFIX} characters")
    if model.get("dropout"):
        raise _refused("it drops merges at random")


def text_growth(tokenizer: dict[str, Any]) -> float:
    """Most characters that the steps before the model make of one."""
    growth = 1.0
    for step in _steps(tokenizer, "normalizer"):
        kind = step["type"]
        if kind == "Replace":
            growth *= _replace_growth(step)
        elif kind == "Prepend":
            if not _text(step.get("prepend")):
                raise _refused("a normalizer prepends nothing; the library panics when another follows")
            growth *= 1 + len(step["prepend"])
        elif kind in _NORMALIZERS:
            growth *= _NORMALIZERS[kind]
        else:
            raise _refused(f"normalizer {kind[:64]!r} is not supported")
    for step in _steps(tokenizer, "pre_tokenizer"):
        kind = step["type"]
        if kind not in _PRE_TOKENIZERS:
            raise _refused(f"pre-tokenizer {kind[:64]!r} is not supported")
        if kind == "Split":
            _check_split(step)
        adds_nothing = kind == "ByteLevel" and step.get("add_prefix_space") is False
        growth *= 4 if adds_nothing else _PRE_TOKENIZERS[kind]
    return growth


def _steps(tokenizer: dict[str, object], section: str) -> list[dict[str, Any]]:
    """The steps of a section, out of nested sequences; their order is not kept."""
    steps: list[dict[str, Any]] = []
    pending: list[Any] = [tokenizer.get(section)]
    seen = 0
    while pending:
        step = pending.pop()
        if step is None:
            continue
        seen += 1
        if not isinstance(step, dict) or not isinstance(step.get("type"), str):
            raise _refused(f"{section} has a step without a type")
        if seen > 2 * MAX_STEPS or len(steps) >= MAX_STEPS:
            raise _refused(f"{section} has more than {MAX_STEPS} steps")
        if step["type"] != "Sequence":
            steps.append(step)
            continue
        members = step.get(_MEMBERS[section])
        if not isinstance(members, list) or len(members) > MAX_STEPS:
            raise _refused(f"{section} has a sequence without steps, or with more than {MAX_STEPS}")
        pending += members
    return steps


def _replace_growth(step: dict[str, object]) -> float:
    """Most characters that a `Replace` makes of one."""
    pattern, content = step.get("pattern"), len(_text(step.get("content")))
    if not isinstance(pattern, dict) or len(pattern) != 1:
        raise _refused("a replacement has no pattern")
    ((kind, source),) = pattern.items()
    if max(content, len(_text(source))) > MAX_LITERAL:
        raise _refused(f"a replacement is longer than {MAX_LITERAL} characters")
    if kind == "String" and _text(source):
        return max(1.0, content / len(source))
    if kind == "Regex" and _PATTERN.fullmatch(_text(source)):
        return max(1.0, content)
    raise _refused(f"a replacement could match nothing, on which the library panics: {str(source)[:64]!r}")


def _check_split(step: dict[str, object]) -> None:
    """A text to split at, or a pattern of the grammar."""
    pattern = step.get("pattern")
    if not isinstance(pattern, dict) or len(pattern) != 1:
        raise _refused("a split has no pattern")
    ((kind, source),) = pattern.items()
    if kind == "String" and 0 < len(_text(source)) <= MAX_LITERAL:
        return
    if kind != "Regex":
        raise _refused(f"it splits at a text that is empty or longer than {MAX_LITERAL} characters")
    try:
        check_pattern(_text(source))
    except PatternError as error:
        raise _refused(f"pre-tokenizer 'Split' has a pattern that could match without end: {error}") from error


def _check_decoder(step: dict[str, Any]) -> None:
    """No step of a decoder may lengthen the text of a token, but for WordPiece's space before it."""
    kind = step["type"]
    if kind not in _DECODERS:
        raise _refused(f"decoder {kind[:64]!r} is not supported")
    if kind == "Replace" and _replace_growth(step) > 1:
        raise _refused("a replacement of its decoder is longer than the pattern")
    if kind == "BPEDecoder" and not step.get("suffix"):
        raise _refused("its BPE decoder has no suffix, which would put a space between all characters")
    if kind == "Strip" and step.get("stop") != 0:
        raise _refused("its decoder strips the end of tokens; the library panics on those it strips whole")


def _check_post_processors(steps: list[dict[str, Any]]) -> None:
    """One step at most may add tokens; a template names each sequence once."""
    for step in steps:
        if step["type"] not in _POST_PROCESSORS:
            raise _refused(f"post-processor {step['type'][:64]!r} is not supported")
    adding = [step for step in steps if step["type"] != "ByteLevel"]
    if len(adding) > 1:
        raise _refused("more than one post-processor adds tokens")
    for template in (step for step in adding if step["type"] == "TemplateProcessing"):
        single, pair = template.get("single"), template.get("pair")
        if _sequences(single) != ["A"] or sorted(_sequences(pair)) not in ([], ["A", "B"]):
            raise _refused("its template does not name each sequence once")
        tokens = template.get("special_tokens") or {}
        if not isinstance(tokens, dict) or any(_ids(token) > MAX_ADDED_TOKENS for token in tokens.values()):
            raise _refused("a special token of its template has too many ids")


def _sequences(template: object) -> list[str]:
    """The sequences that a template names."""
    pieces = template if isinstance(template, list) else []
    if len(pieces) > 2 + 2 * MAX_ADDED_TOKENS:
        raise _refused("its template adds too many tokens to a text")
    named = [piece["Sequence"] for piece in pieces if isinstance(piece, dict) and "Sequence" in piece]
    return [str(sequence.get("id")) for sequence in named if isinstance(sequence, dict)]


def _ids(token: object) -> int:
    ids = token.get("ids") if isinstance(token, dict) else None
    return len(ids) if isinstance(ids, list) else 0


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _refused("a setting that should be a text is none")
    return value


def _refused(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"run files: tokenizer.json: {reason}")
