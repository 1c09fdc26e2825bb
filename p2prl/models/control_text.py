"""Control tokens in the text of rows: found, and cut so that a tokenizer reads them as the characters they are.

A row that has `<|im_end|>` in its text would otherwise end the user's turn there, and a row that goes on with
`<|im_start|>assistant` would put words into the model's mouth. A tokenizer matches its special tokens anywhere in a
text, and only outside the cuts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from p2prl.tasks.data.prompts import CUT


class ControlText:
    """The texts of a tokenizer's special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a transformers tokenizer."""
        added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
        self.texts = frozenset(text for text in (*added, *map(str, tokenizer.all_special_tokens)) if text)
        self._any = re.compile("|".join(map(re.escape, sorted(self.texts, key=len, reverse=True))) or r"(?!)")
        self._starts = re.compile(f"(?=({self._any.pattern}))")

    def found(self, texts: Iterable[str]) -> str:
        """The first control token in the texts; empty when there is none."""
        return next((match[0] for text in texts if (match := self._any.search(text))), "")

    def cut(self, text: str) -> str:
        """The text with `CUT` after the first character of each control token, also of those that overlap."""
        places = [match.start() + 1 for match in self._starts.finditer(text)]
        return CUT.join(text[start:end] for start, end in pairwise([0, *places, len(text)]))
