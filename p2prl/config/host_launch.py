"""Processes that torchrun started on several hosts, by the environment that it gives them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLaunch:
    """This process among those of a launch."""

    rank: int
    """Its number; 0 is the learner."""
    ranks: int
    """Processes on all hosts together."""
    hosts: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> HostLaunch | None:
        """The launch that started this process; None if it was started by itself."""
        if "TORCHELASTIC_RUN_ID" not in environment:
            return None
        ranks, here = int(environment["WORLD_SIZE"]), int(environment["LOCAL_WORLD_SIZE"])
        return cls(rank=int(environment["RANK"]), ranks=ranks, hosts=-(-ranks // here))
