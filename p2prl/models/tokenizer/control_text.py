"""Control tokens in texts that are not the run's own: of rows, of prompts from seeds, of environments.

A row that has `<|im_end|>` in its text would otherwise end the user's turn there, and one that goes on with
`<|im_start|>assistant` would put words into the model's mouth. A tokenizer matches its special tokens anywhere in a
text. So such a text is encoded by a copy of the tokenizer that knows its control tokens under private names only
(`p2prl/models/tokenizer/hidden_tokens.py`), which the run's own texts around it use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from p2prl.models.tokenizer.hidden_tokens import NAME_START, private_name
from p2prl.tasks.data.prompts import CUT

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
