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
    """The texts of a tokenizer's control tokens: special ones, and those that its chat template writes."""

    def __init__(self, tokenizer: Any, written: str = "") -> None:
        """`tokenizer` is a transformers tokenizer, `written` what the template writes around messages.

        A token in `written` steers the model whether it is special or not, as DeepSeek-R1's `<｜User｜>` is not.
        """
        entries = ((str(token), token.special) for token in tokenizer.added_tokens_decoder.values())
        added = (text for text, special in entries if special or (_is_mark(text) and text in written))
        self.texts = frozenset(text for text in (*added, *map(str, tokenizer.all_special_tokens)) if text)
        self._any = re.compile("|".join(map(re.escape, sorted(self.texts, key=len, reverse=True))) or r"(?!)")
        self._starts = re.compile(f"(?=({self._any.pattern}))")

    def found(self, texts: Iterable[str]) -> str:
        """The first control token in the texts; empty when there is none."""
        return next((match[0] for text in texts if (match := self._any.search(text))), "")

    def lone(self, texts: Iterable[str]) -> str:
        """A control token of one character in the texts, which no cut takes apart; empty when there is none."""
        single = [token for token in self.texts if len(token) == 1]
        return next((token for text in texts for token in single if token in text), "")

    def cut(self, text: str) -> str:
        """The text with `CUT` after the first character of each control token, also of those that overlap."""
        places = [match.start() + 1 for match in self._starts.finditer(text)]
        return CUT.join(text[start:end] for start, end in pairwise([0, *places, len(text)]))


def _is_mark(text: str) -> bool:
    """Whether an added token is no word or white space, which texts have and templates write too."""
    return not text.isspace() and not text.isalnum()
