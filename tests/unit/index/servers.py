"""Answers of an index, made by hand, and the types of the fixtures that serve them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from p2prl.index.index_state import IndexState
from p2prl.protocol.listing import run_id
from p2prl_lab.testing.listed_runs import ListedRun

Serve = Callable[[], tuple[str, IndexState]]
"""Starts an index of the product; its URL and state."""

Answering = Callable[[Mapping[str, bytes | None]], str]
"""Starts a server that gives these bytes for these paths, none for others, and no answer at all for None; its URL."""


def manifest_path(run: ListedRun) -> str:
    """Where an index has a run's manifest."""
    return f"/api/v1/manifests/{run_id(run.run)}"
