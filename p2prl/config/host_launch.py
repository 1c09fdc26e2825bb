"""Processes that torchrun started on several hosts, by the environment that it gives them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p2prl.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLaunch:
    """This process among those of a launch."""

    rank: int
    """Its number; 0 is the learner."""
    ranks: int
    """Processes on all hosts together."""
    ranks_here: int
    """Processes on this host."""

    @property
    def hosts(self) -> int:
        """Machines; each has as many processes."""
        return -(-self.ranks // self.ranks_here)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> HostLaunch | None:
        """The launch that started this process; None if it was started by itself."""
        if "TORCHELASTIC_RUN_ID" not in environment:
            return None
        rank, ranks, here = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
        return cls(rank=rank, ranks=ranks, ranks_here=here)

    def check(self, plan: str, ranks: int) -> None:
        """`ConfigError` unless a plan has as many ranks as there are processes."""
        if ranks != self.ranks:
            raise ConfigError(
                f"torchrun started {self.ranks} processes, and plan {plan} has {ranks}",
                remedy="Let --nnodes times --nproc-per-node be the ranks of the plan.",
            )
