"""Learners that reject honest work: how much of it a volunteer gives away before it stops, and what it says.

Simulated runs on virtual time, with the product's volunteers, their spools and their own replays. A machine that
computes wrong numbers under an honest learner, and a healthy one, stand beside them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from p2prl.models.sampler_port import Sampler
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.sim.dishonest_samplers import CHEATS, DishonestSampler
from p2prl.sim.swarm_config import SwarmConfig
from p2prl_lab.sim.lying_learner import LyingSwarm, group_counts

_VOLUNTEERS = 3
_SAMPLE_S = 5.0
_AT_MOST_S = 600.0
"""Virtual seconds, in which a volunteer samples some 200 groups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiarCase:
    """What a learner does, and to whom."""

    victims: int = 0
    """Volunteers whose right groups it calls wrong."""
    voids: bool = False
    """Whether it voids 32 further groups for each of these, as the rules say of wrong ones."""
    replays: bool = True
    """Whether the volunteers can replay."""
    broken: Callable[[Sampler], Sampler] | None = None
    """The first volunteer's sampler, if it computes wrong."""


LIARS = {
    "rejects everybody": LiarCase(victims=_VOLUNTEERS),
    "rejects one victim": LiarCase(victims=1),
    "rejects everybody, and voids": LiarCase(victims=_VOLUNTEERS, voids=True),
    "rejects everybody, no replay": LiarCase(victims=_VOLUNTEERS, replays=False),
    "honest, broken machine": LiarCase(broken=partial(DishonestSampler, cheat=CHEATS["temperature x 1.5"])),
    "honest": LiarCase(),
}
"""By name."""


@dataclass(frozen=True, kw_only=True)
class LiarRow:
    """What became of the first volunteer."""

    learner: str
    sampled: int
    """Groups that it gave to the run."""
    credited: int
    rejected: int
    stopped_after_s: float
    """Virtual seconds, at two groups in five of them; −1 if it did not stop."""
    exit_code: int
    """0 if it did not stop."""
    others_credited: int
    """Groups of the other volunteers that were credited meanwhile."""


def liar_row(name: str, seed: int) -> LiarRow:
    """Run a case until the first volunteer stops, or for ten virtual minutes."""
    case = LIARS[name]
    config = SwarmConfig(volunteers=_VOLUNTEERS, updates=100_000, step_seconds=5.0, sample_seconds=_SAMPLE_S, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        swarm = LyingSwarm(
            config,
            tiny_model("chain4", seed=1),
            Path(folder),
            victims=case.victims,
            voids=case.voids,
            replays=case.replays,
            broken=case.broken,
        )
        seconds = swarm.run_until_stopped(0, at_most_s=_AT_MOST_S)
        error = swarm.volunteers()[0].refused.error()
        counts, *others = (group_counts(Path(folder), number) for number in range(_VOLUNTEERS))
        row = LiarRow(
            learner=name,
            sampled=sum(counts.values()),
            credited=counts.get("verified", 0),
            rejected=counts.get("rejected", 0),
            stopped_after_s=-1.0 if error is None else seconds,
            exit_code=0 if error is None else error.exit_code,
            others_credited=sum(other["verified"] for other in others),
        )
        swarm.close()
    return row
