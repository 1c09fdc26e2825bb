"""Scorers for tests of the sandbox, built from a spec that is one word: honest, evaluating, and failing ones.

A builder module for `ScorerPool`, in place of `p2prl.tasks.scorers.build`.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from p2prl.errors import ConfigError
from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.row_scorer import RowScorer


class Exact:
    """1 for the row's answer."""

    def score(self, row: Row, completion: str, finished: bool) -> float:
        """See `RowScorer`."""
        return float(finished and completion == row["answer"])


class Evaluating:
    """The worst scorer there is: it executes the answer, then scores the variable `result`."""

    def score(self, row: Row, completion: str, finished: bool) -> float:
        """See `RowScorer`."""
        names: dict[str, object] = {"row": row}
        exec(completion, names)  # the attack that the sandbox is for
        return float(names.get("result", 0.0) == row["answer"])


class Obeying:
    """A scorer without third-party code that fails in the way the answer names."""

    def score(self, row: Row, completion: str, finished: bool) -> float:
        """See `RowScorer`."""
        kind, _, amount = completion.partition(" ")
        if kind == "hang":
            while True:
                pass
        if kind == "sleep":
            time.sleep(float(amount))
        if kind == "allocate":
            return float(len(bytearray(int(amount))) > 0)
        if kind == "end":
            os._exit(3)
        if kind == "raise":
            raise ValueError(amount)
        if kind == "draw":
            return random.random()
        if kind == "text":
            return amount  # type: ignore[return-value]  # what a researcher's function may do
        return float(amount) if kind == "value" else 0.0


_SCORERS: dict[str, type[RowScorer]] = {
    "exact": Exact, "forked exact": Exact, "evaluating": Evaluating, "obeying": Obeying, "forked obeying": Obeying,
}  # fmt: skip


def build_scorer(spec: str, code: Path | None) -> RowScorer:
    """The scorer of this name. `ConfigError` for `not installed`, `KeyError` for another."""
    if spec == "not installed":
        raise ConfigError("a package is missing", remedy="Run pip install extra.")
    return _SCORERS[spec]()


def runs_third_party_code(spec: str) -> bool:
    """Whether each answer gets a process of its own."""
    return spec not in ("exact", "obeying")
