"""Token ids of texts that have control tokens in a part that is not the run's own, by one rule for rows and slots."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from tokenizers import Tokenizer

from p2prl.models.tokenizer.control_text import ControlText
from p2prl.models.tokenizer.hidden_tokens import hide_tokens

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

    def __init__(self, backend: Any) -> None:
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
