"""`math-verify`: the answer as a mathematical expression; the adapter of the library `math-verify`.

Strangers' LaTeX goes through an ANTLR grammar and sympy, which take 5 s on some answers of 15 bytes. The library's own
time limit is a signal handler inside the process that it should limit, so it is turned off: the sandbox kills.
"""

from __future__ import annotations

import logging
from typing import Any

from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.scorers.answer_text import UnusableRowError, marked_answer, right_text
from p2prl.tasks.scorers.extras import import_extra

_WARM_UP = (("$x^2+2x+1$", "\\boxed{(x+1)^2}"), ("$\\{1,2\\}$", "\\boxed{\\{2,1\\}}"), ("$\\frac{1}{2}$", "is 0.5"))
"""Compared once when the scorer is built: the first comparison of a process takes a second for grammar tables and
caches, and the sandbox scores each answer in a fork of the process that built the scorer."""


class MathAnswer:
    """Accepts `so it is $\\frac{2}{4}$` or `\\boxed{0.5}` for the answer `1/2`: equal for sympy.

    The text's last expression counts, a boxed one first. The answer's column is an expression, with or without `$`, or
    a worked solution with `####` or `\\boxed{}`.
    """

    def __init__(self, column: str) -> None:
        """`ConfigError` when the library is not installed."""
        self._column = column
        self._library = import_extra("math_verify", "math", scorer="math-verify")
        logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it logs each answer that it cannot read
        for right, answer in _WARM_UP:
            self._library.verify(self._parse(right), self._parse(answer), timeout_seconds=None)

    def accepts(self, row: Row, text: str) -> bool:
        """May take seconds."""
        right = self._parse(_as_latex(marked_answer(right_text(row, self._column))))
        if not right:
            raise UnusableRowError(f"the column {self._column!r} holds no expression that math-verify reads")
        return bool(self._library.verify(right, self._parse(text), timeout_seconds=None))

    def right_answer(self, row: Row) -> str | None:
        return _as_latex(marked_answer(right_text(row, self._column)))

    def _parse(self, text: str) -> list[Any]:
        parsed: list[Any] = self._library.parse(text, parsing_timeout=None)
        return parsed


def _as_latex(text: str) -> str:
    return text if "$" in text else f"\\boxed{{{text}}}"
