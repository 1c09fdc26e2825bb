"""Settings of training over several processes: the `[learner.parallel]` table of run.toml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from p2prl.errors import require

_MOST_RANKS = 64
"""More processes than one machine has devices or cores for."""

Zero = Literal[2, 3]


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Processes of one machine that share every update, and what each of them holds."""

    ranks: int = 1
    """Processes. Each computes its share of the rows, and holds its share of gradients, optimizer and weights."""
    zero: Zero = 2
    """Weights beyond that share: with 2, each process has all of them from its forward pass to the end of the update;
    with 3, those of one layer at a time, which takes less memory and about a third more time."""

    def __post_init__(self) -> None:
        require("learner.parallel.ranks", self.ranks, 1 <= self.ranks <= _MOST_RANKS, f"within 1..{_MOST_RANKS}")
        require("learner.parallel.zero", self.zero, self.zero in (2, 3), "2 or 3")
