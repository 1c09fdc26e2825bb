"""Rows of the floods: of whole runs, each compared with the same run left alone, and of one node's tables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from p2prl.models.small_models.tiny_models import tiny_model
from p2prl_lab.bench.trust.floods import FloodPlan, FloodRow, flood_row, trained_groups
from p2prl_lab.bench.trust.network_floods import flood_directory, flood_links, flood_streams

_TASK = "chain4"


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A flood of one table of a node."""

    table: str
    keys: int
    """Attackers that hold every place before an honest newcomer comes."""
    newcomer_after_s: float | None
    """Until the newcomer has its place; None for never."""
    newcomer_share: float
    """Part of the time after that in which it keeps it."""


def flood_rows(plan: FloodPlan, floods: Sequence[str]) -> Iterator[tuple[str, Callable[[], FloodRow]]]:
    """Each flood and how its row is made. The run without a flood is simulated once, if any row is made."""

    def trained(flood: str) -> list[tuple[float, bytes]]:
        with tempfile.TemporaryDirectory() as folder:
            return trained_groups(plan, tiny_model(_TASK, seed=plan.seed), Path(folder), flood)

    quiet = cache(lambda: trained(""))

    def row(flood: str) -> FloodRow:
        return flood_row(plan, flood, quiet(), trained(flood))

    for flood in floods:
        yield flood, partial(row, flood)


def table_rows(seed: int) -> Iterator[tuple[str, Callable[[], TableRow]]]:
    """Each table and how its row is made."""

    def links() -> TableRow:
        keys = 1024
        flood = flood_links(seed, keys=keys, watched_s=30.0)
        return TableRow(
            table="links", keys=keys, newcomer_after_s=flood.linked_after_s, newcomer_share=flood.linked_share
        )

    def streams() -> TableRow:
        keys = 128
        flood = flood_streams(seed, keys=keys)
        return TableRow(table="streams", keys=keys, newcomer_after_s=flood.served_after_s, newcomer_share=1.0)

    def directory() -> TableRow:
        keys = 768
        flood = flood_directory(seed, keys=keys)
        return TableRow(
            table="directory", keys=keys, newcomer_after_s=flood.found_after_s, newcomer_share=flood.found_share
        )

    yield from (("links", links), ("streams", streams), ("directory", directory))
