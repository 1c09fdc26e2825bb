"""Predicted and realized utilization side by side: the planner's queue against real roles on virtual time.

The planner knows what an operator could: each volunteer's mean time of a group, and how much the times spread. The
draws of its simulated runs are its own, never the swarm's.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2prl.learner.service import Learner
from p2prl.learner.timing.capacity import Demand, SamplingMachine, capacity_of
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.planning.utilization_forecast import forecast
from p2prl.sim.swarm import Swarm, SwarmConfig

_GROUPS = 16
"""Groups of an update, the learner's default."""

_SLOTS = 2
"""Groups that a simulated volunteer samples at once."""

_SPREAD = 0.3
"""Standard deviation of the logarithm of a volunteer's time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedFleet:
    """A swarm of `p2prl sim`."""

    name: str
    volunteers: int
    sample_s: float
    step_s: float
    staleness: int
    publish_every: int


FLEETS = (
    SimulatedFleet(name="few", volunteers=4, sample_s=20.0, step_s=20.0, staleness=128, publish_every=2),
    SimulatedFleet(name="enough", volunteers=12, sample_s=20.0, step_s=20.0, staleness=128, publish_every=2),
    SimulatedFleet(name="fast learner", volunteers=6, sample_s=20.0, step_s=10.0, staleness=128, publish_every=2),
    SimulatedFleet(name="slow and strict", volunteers=12, sample_s=120.0, step_s=20.0, staleness=8, publish_every=2),
    SimulatedFleet(name="nearly enough", volunteers=3, sample_s=20.0, step_s=40.0, staleness=128, publish_every=1),
)
"""None was used to choose anything of the planner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRow:
    """One fleet."""

    fleet: str
    saturated: bool
    """Whether the formula says so."""
    predicted: float
    """Utilization, mean over simulated queues."""
    low: float
    high: float
    """Eight of ten simulated queues lie between these."""
    realised: float
    """Of the swarm, from its second quarter on."""
    updates: int


class _TimedSwarm(Swarm):
    """A swarm whose volunteers take lognormal times, and that notes them and when each update begins."""

    idle_turn_s = 0.2
    """As over sockets, where a volunteer waits no longer for a version, nor the learner for a group."""

    def __init__(self, config: SwarmConfig, folder: Path) -> None:
        self.paces: dict[int, float] = {}
        """Mean seconds of a volunteer's groups, by its number."""
        self.began_s: list[float] = []
        self._times = random.Random(f"times/{config.seed}")  # noqa: S311 - simulated
        super().__init__(config, tiny_model(config.task, seed=config.seed), folder)

    def _volunteer_turn(self, host: Any, pace: float) -> float:
        self.paces[host.number] = pace
        factor = math.exp(self._times.gauss(0.0, _SPREAD) - _SPREAD**2 / 2)
        return super()._volunteer_turn(host, pace * factor)

    def _learner_turn(self, learner: Learner) -> float:
        wait = super()._learner_turn(learner)
        if len(self._metrics) > len(self.began_s):
            self.began_s.append(self.network.elapsed)
        return wait


def run_plan_bench(
    *, updates: int, seed: int, on_progress: Callable[[str, float], None] = lambda *_: None
) -> Iterator[PlanRow]:
    """A row for each fleet, as soon as its swarm has made its updates."""
    for number, fleet in enumerate(FLEETS):
        on_progress(fleet.name, number / len(FLEETS))
        yield plan_row(fleet, updates=updates, seed=seed + number)


def plan_row(fleet: SimulatedFleet, *, updates: int, seed: int) -> PlanRow:
    """Predict a fleet, then simulate it."""
    demand = Demand(
        groups_per_update=_GROUPS,
        update_s=fleet.step_s,
        staleness_bound=fleet.staleness,
        publish_every=fleet.publish_every,
    )
    swarm = _simulated(fleet, updates=updates, seed=seed)
    # The groups of a simulated volunteer end together, so it has nothing to drain before it takes a version.
    machines = [
        SamplingMachine(group_s=pace, slots=_SLOTS, spread=_SPREAD, drains=False) for pace in swarm.paces.values()
    ]
    expected = forecast(machines, demand, updates=updates)
    began = swarm.began_s
    first = len(began) // 4
    return PlanRow(
        fleet=fleet.name,
        saturated=capacity_of(machines, demand).saturated,
        predicted=expected.utilization,
        low=expected.low,
        high=expected.high,
        realised=(len(began) - 1 - first) * fleet.step_s / (began[-1] - began[first]),
        updates=len(began),
    )


def _simulated(fleet: SimulatedFleet, *, updates: int, seed: int) -> _TimedSwarm:
    """A swarm that has made its updates."""
    config = SwarmConfig(
        volunteers=fleet.volunteers,
        updates=updates,
        step_seconds=fleet.step_s,
        sample_seconds=fleet.sample_s,
        staleness_bound=fleet.staleness,
        publish_every=fleet.publish_every,
        seed=seed,
    )
    with tempfile.TemporaryDirectory(prefix="p2prl-plan-") as folder:
        swarm = _TimedSwarm(config, Path(folder))
        swarm.run(on_progress=lambda _: None)
    return swarm


def as_markdown(rows: list[PlanRow]) -> str:
    """Rows as a Markdown table."""
    titles = ("fleet", "saturated", "predicted", "low", "high", "realized", "updates")
    lines = [f"| {' | '.join(titles)} |", "|---|---" + "|---:" * 5 + "|"]
    lines += [
        f"| {row.fleet} | {'yes' if row.saturated else 'no'} | {row.predicted:.2f} | {row.low:.2f} | {row.high:.2f} "
        f"| {row.realised:.2f} | {row.updates} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
