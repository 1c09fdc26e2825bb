"""Control tokens in texts that are not the run's own: of rows, of prompts from seeds, of environments.

A row that has `<|im_end|>` in its text would otherwise end the user's turn there, and one that goes on with
`<|im_start|>assistant` would put words into the model's mouth. A tokenizer matches its special tokens anywhere in a
text. So such a text is encoded by a copy of the tokenizer that knows its control tokens under private names only
(`hide_tokens`), which the run's own texts around it use.

Renaming changes nothing else: a text is split, normalized and merged as it always is, as though the tokens did not
exist. Cutting the text inside a token would not do: tokenizers in the manner of sentencepiece put a space before what
follows a cut, and Unigram finds the token again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer

from p2prl.tasks.data.prompts import CUT

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


_REPLACEMENT = "\ufffd"
"""Stands for a character of a text that cannot be read as itself."""


class ControlText:
    """The texts of a tokenizer's control tokens: special ones, and those that the run writes around messages."""

    def __init__(self, added: Iterable[tuple[str, bool]], written: str = "") -> None:
        """`added` are added tokens, each with whether it is special; `written` is what the run writes.

        A token in `written` steers the model whether it is special or not, as DeepSeek-R1's `<｜User｜>` is not.
        """
        self.texts = frozenset(
            text for text, special in added if text and (special or (_is_mark(text) and text in written))
        )
        lengths: dict[str, set[int]] = {}
        for text in self.texts:
            lengths.setdefault(text[0], set()).add(len(text))
        # Not one expression of all tokens: a stranger's run may add 65,536 of them that begin alike.
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = re.compile(f"[{''.join(map(re.escape, sorted(lengths)))}]" if lengths else r"(?!)")

    def found(self, texts: Iterable[str]) -> str:
        """The first control token in the texts; empty when there is none."""
        return next((token for text in texts for _, token in self._matches(text)), "")

    def lone(self, texts: Iterable[str]) -> str:
        """A control token of one character in the texts, which has no characters to be read as; empty for none."""
        single = [token for token in self.texts if len(token) == 1]
        return next((token for text in texts for token in single if token in text), "")

    def guarded(self, text: str) -> str:
        """The text with `CUT` before each control token, also before those that overlap."""
        places = [at for at, _ in self._matches(text)]
        return CUT.join(text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True))

    def unguarded(self, text: str) -> str:
        """The text without its guards, and each control token that has none under its private name."""
        text = text.replace(NAME_START, _REPLACEMENT)  # a row cannot write a private name itself
        parts, done = [], 0
        for at, token in self._matches(text):
            if at >= done and not text.endswith(CUT, 0, at):
                parts += [text[done:at], private_name(token)]
                done = at + len(token)
        return "".join((*parts, text[done:])).replace(CUT, "")

    def between(self, frame: tuple[str, str], text: str) -> str:
        """A stranger's text between two texts of the run, for the copy that knows control tokens by private names."""
        for token in self.texts:
            if len(token) == 1:
                text = text.replace(token, _REPLACEMENT)  # it cannot be read as characters
        return self.unguarded(frame[0]) + text.replace(NAME_START, _REPLACEMENT) + self.unguarded(frame[1])

    def _matches(self, text: str) -> Iterator[tuple[int, str]]:
        """Each place where a control token begins, with the longest that does."""
        for match in self._first.finditer(text):
            at = match.start()
            for length in self._lengths[match[0]]:
                if (token := text[at : at + length]) in self.texts:
                    yield at, token
                    break


def _is_mark(text: str) -> bool:
    """Whether an added token is no word or white space, which texts have and templates write too."""
    return not text.isspace() and not text.isalnum()


SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""The special tokens a run's tokenizer may name."""


class ControlEncoding:
    """Encodes with one tokenizer and one set of control tokens. Its second tokenizer is made when a text needs it."""

    def __init__(self, tokenizer: Any, *, written: str = "") -> None:
        """`tokenizer` is transformers' or one in a confined process; `written` is what the run puts around texts."""
        self.control = ControlText(_added_tokens(tokenizer), written)
        self._tokenizer = tokenizer
        self._hiding: Any = None

    def encode(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """Tokens of texts with private names; `special` tokens of a text around them."""
        if not texts:
            return []
        if self._hiding is None:
            self._hiding = _hiding(self._tokenizer, self.control.texts)
        return [list(row) for row in self._hiding(texts, add_special_tokens=special)["input_ids"]]

    def close(self) -> None:
        """End the process of the second tokenizer, if it has one."""
        if close := getattr(self._hiding, "close", None):
            close()


class _LocalCopy:
    """A copy of transformers' tokenizer in this process."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend

    def __call__(self, texts: Sequence[str], *, add_special_tokens: bool) -> dict[str, list[list[int]]]:
        rows = self._backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return {"input_ids": [row.ids for row in rows]}


def _hiding(tokenizer: Any, tokens: Collection[str]) -> Any:
    if (hiding := getattr(tokenizer, "hiding", None)) is not None:
        return hiding(tokens)
    rules = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    return _LocalCopy(Tokenizer.from_str(json.dumps(hide_tokens(rules, tokens))))


def _added_tokens(tokenizer: Any) -> list[tuple[str, bool]]:
    """The same for a tokenizer of transformers as for one that was read from the files of its run."""
    if (added := getattr(tokenizer, "added_tokens", None)) is not None:
        return list(added())
    named = [getattr(tokenizer, name) for name in SPECIAL_TOKENS]
    found = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
    return [*((token.content, token.special) for token in found), *((str(text), True) for text in named if text)]
