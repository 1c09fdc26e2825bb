"""Settings of training over several processes: the `[learner.parallel]` table of run.toml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from p2prl.errors import ConfigError, require

_MOST_RANKS = 64
"""More processes than one machine has devices or cores for."""

Zero = Literal[2, 3]

ONE_PROCESS = "1"
"""Plan of a learner alone."""

AUTO = "auto"
"""In place of a plan: the fastest on this machine, which a profile finds before the learner is built."""

_DIMENSIONS = {"dp": "data", "pp": "pipeline", "tp": "tensor"}
_PART = re.compile(r"([a-z]+)([0-9]{1,3})")


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Processes of one machine that share every update, and what each of them holds."""

    plan: str = ONE_PROCESS
    """How processes share an update: `dp2`: two, each with its share of the rows; `pp2`: two, each with its share of
    the layers and of the vocabulary; `tp2`: two, each with its share of every layer and of the vocabulary; `dp2pp2`:
    four, in two such pairs; `1`: one process; `auto`: the fastest on this machine, by a profile of at most a
    minute."""
    zero: Zero = 2
    """Weights beyond a rank's share under `dp`: with 2, each process has all of them from its forward pass to the end
    of the update; with 3, those of one layer at a time, which takes less memory and about a third more time."""

    def __post_init__(self) -> None:
        require("learner.parallel.zero", self.zero, self.zero in (2, 3), "2 or 3")
        if not self.is_auto:
            _sizes(self.plan)

    @property
    def is_auto(self) -> bool:
        """Whether the plan is still to be chosen: it has no ranks yet."""
        return self.plan == AUTO

    @property
    def data(self) -> int:
        """Ranks, or pipelines of ranks, among which rows are dealt."""
        return _sizes(self.plan)["dp"]

    @property
    def pipeline(self) -> int:
        """Stages: ranks among which layers and words are dealt."""
        return _sizes(self.plan)["pp"]

    @property
    def tensor(self) -> int:
        """Ranks that share every layer of a stage."""
        return _sizes(self.plan)["tp"]

    @property
    def shares(self) -> int:
        """Ranks that hold the model together: stages times the ranks of each."""
        return self.pipeline * self.tensor

    @property
    def ranks(self) -> int:
        """Processes together."""
        return self.data * self.shares

    @property
    def name(self) -> str:
        """The plan with its parts in one order, for a record."""
        parts = "".join(f"{kind}{size}" for kind, size in _sizes(self.plan).items() if size > 1)
        return parts or ONE_PROCESS


def _sizes(plan: str) -> dict[str, int]:
    """Ranks by dimension. `ConfigError` for what is no plan."""
    sizes = dict.fromkeys(_DIMENSIONS, 1)
    parts = _PART.findall(plan)
    kinds = [kind for kind, _ in parts]
    if plan != ONE_PROCESS:
        known = parts and "".join(kind + size for kind, size in parts) == plan and set(kinds) <= set(sizes)
        if not known or len(set(kinds)) < len(kinds):
            kinds_text = ", ".join(f"{kind} ({name})" for kind, name in _DIMENSIONS.items())
            raise ConfigError(
                f"plan = {plan!r} is no plan of ranks",
                remedy=f"Name each dimension once with its ranks, as in dp2, pp2, tp2 or dp2pp2: {kinds_text}.",
            )
        sizes |= {kind: int(size) for kind, size in parts}
    ranks = 1
    for size in sizes.values():
        ranks *= size
    require("learner.parallel.plan", plan, 1 <= ranks <= _MOST_RANKS, f"of 1..{_MOST_RANKS} ranks")
    return sizes
