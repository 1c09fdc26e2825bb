"""A tokenizer's rules with some tokens under private names, so that no text is read as those tokens. Pure.

Renaming changes nothing else: a text is split, normalized and merged as it always is, as though the tokens did not
exist. Cutting the text inside a token would not do: tokenizers in the manner of sentencepiece put a space before what
follows a cut, and Unigram finds the token again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

NAME_START, NAME_END = "\ufdd2", "\ufdd3"
"""Around the text of a token with a private name. No characters, so that no normalizer changes them."""


def private_name(token: str) -> str:
    """The name of a hidden token."""
    return f"{NAME_START}{token}{NAME_END}"


def hide_tokens(rules: dict[str, Any], tokens: Collection[str]) -> dict[str, Any]:
    """The rules of a checked tokenizer.json with `tokens` under their private names, and the same ids."""
    names = {token: private_name(token) for token in tokens}
    added = [
        entry | {"content": names[entry["content"]], "normalized": False} if entry["content"] in names else entry
        for entry in rules.get("added_tokens") or ()
    ]
    return rules | {"added_tokens": added, "model": _hidden_model(rules["model"], names)}


def _hidden_model(model: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The model's tables with the new names. Merges that make a renamed token, or use one, are left out."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        return model | {"vocab": [[names.get(token, token), score] for token, score in vocabulary]}
    changed = model | {"vocab": {names.get(token, token): number for token, number in vocabulary.items()}}
    if (unknown := model.get("unk_token")) in names:
        changed["unk_token"] = names[unknown]
    prefix = model.get("continuing_subword_prefix") or ""
    if merges := model.get("merges"):
        pairs = ((merge, merge.split(" ") if isinstance(merge, str) else merge) for merge in merges)
        changed["merges"] = [
            merge
            for merge, (left, right) in pairs
            if names.keys().isdisjoint((left, right, left + right.removeprefix(prefix)))
        ]
    return changed
