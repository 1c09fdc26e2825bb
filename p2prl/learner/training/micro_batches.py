"""Micro-batches: rows of similar length, together within a budget of tokens. Pure, so that a replay splits alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from p2prl.learner.training.parallel_config import ONE_PROCESS


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatchRule:
    """How a batch is split and computed."""

    tokens: int
    """Most tokens of a micro-batch, padding included. One row always fits: it cannot be split."""
    checkpointing: bool = False
    """Keep only the inputs of each layer for the backward pass, which computes the rest again."""
    plan: str = ONE_PROCESS
    """Plan of the ranks that share a batch: each has micro-batches of its own."""

    @property
    def text(self) -> str:
        """The rule in words."""
        within = f" on ranks by plan {self.plan}" if self.plan != ONE_PROCESS else ""
        return f"{self.tokens:,} tokens{' with checkpointing' if self.checkpointing else ''}{within}"

    def halved(self, *, used: int) -> MicroBatchRule:
        """The rule with half the tokens that a micro-batch used, which may be fewer than it allows."""
        return replace(self, tokens=max(1, min(self.tokens, used) // 2))


def micro_batches(lengths: Sequence[int], *, tokens: int) -> list[list[int]]:
    """Indices of rows, split so that rows · longest row ≤ `tokens` in each part. Shortest rows first.

    Rows are sorted by length, so little is padded, and filled from the longest, so the part with the longest rows is
    full. Rows of equal length keep their order.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    parts: list[list[int]] = []
    for row in order:
        # the first row of a part is its longest
        if parts and (len(parts[-1]) + 1) * lengths[parts[-1][0]] <= tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts[::-1]
