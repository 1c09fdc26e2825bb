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
from p2prl.sim.swarm import Swarm
from p2prl.sim.swarm_config import SwarmConfig

_GROUPS = 4
"""Groups of an update: few, so that a simulated swarm takes a minute."""

_SLOTS = 2
"""Groups that a simulated volunteer samples at once."""

_SPREAD = 0.3
"""Standard deviation of the logarithm of a volunteer's time."""

IDLE_TURN_S = 0.2
"""As over sockets, where a volunteer waits no longer for a version, nor the learner for a group."""

_MOMENT_S = 0.01
"""Times closer than this are one: virtual time is no exact sum."""

_COMINGS = 50
"""Times that the volunteers of a fleet leave, all together, if they leave at all. After a dozen, what a swarm came to
is a draw with a standard deviation of .1, which no forecast can meet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedFleet:
    """A swarm of `p2prl sim`."""

    name: str
    volunteers: int
    sample_s: float
    step_s: float
    staleness: int
    publish_every: int
    share_of_time: float = 1.0
    session_s: float = math.inf
    """Mean time from a volunteer's coming to its leaving."""


def drawn_fleets(seed: int, number: int, *, updates: int) -> list[SimulatedFleet]:
    """Fleets that bring .3 to 1.5 of their learners' need, every other one with volunteers that come and go.

    Those come and go at least `_COMINGS` times together.
    """
    rng = random.Random(f"fleets/{seed}")  # noqa: S311 - simulated
    fleets = []
    for index in range(number):
        volunteers, step_s = rng.randint(8, 10), 10.0
        share = rng.choice((0.6, 0.8)) if index % 2 else 1.0
        of_need = rng.uniform(*((0.3, 0.95) if index % 3 else (0.95, 1.5)))
        fleets.append(
            SimulatedFleet(
                name=f"{volunteers} volunteers{', come and go' if share < 1.0 else ''}, {of_need:.2f} of the need",
                volunteers=volunteers,
                sample_s=share * volunteers * _SLOTS * step_s / (_GROUPS * of_need),
                step_s=step_s,
                staleness=rng.choice((16, 64, 128)),
                publish_every=rng.choice((1, 2, 4)),
                share_of_time=share,
                session_s=share * volunteers * updates * step_s / min(of_need, 1.0) / _COMINGS
                if share < 1.0
                else math.inf,
            )
        )
    return fleets


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRow:
    """One fleet."""

    fleet: str
    saturated: bool
    """Whether the formula says so."""
    formula: float
    """Utilization by the formula."""
    predicted: float
    """Utilization, mean over simulated queues."""
    low: float
    high: float
    """Eight of ten simulated queues lie between these."""
    realised: float
    """Of the swarm, from its second quarter on."""
    updates: int


class _Presence:
    """When a volunteer is there: times of exponential length, by turns there and away."""

    def __init__(self, fleet: SimulatedFleet, rng: random.Random) -> None:
        self._means = fleet.session_s, fleet.session_s * (1.0 / fleet.share_of_time - 1.0)
        self._rng = rng
        self._comes = 0.0 if rng.random() < fleet.share_of_time else rng.expovariate(1.0 / self._means[1])
        self._leaves = self._comes + rng.expovariate(1.0 / self._means[0])

    def away_s(self, now: float, needed_s: float) -> float:
        """Seconds until it comes back; 0 if it is there now and for as long as is needed."""
        while self._leaves < now:
            self._next()
        if self._comes <= now + _MOMENT_S and now + needed_s <= self._leaves:
            return 0.0
        if self._comes <= now + _MOMENT_S:
            self._next()
        return self._comes - now

    def _next(self) -> None:
        self._comes = self._leaves + self._rng.expovariate(1.0 / self._means[1])
        self._leaves = self._comes + self._rng.expovariate(1.0 / self._means[0])


class _TimedSwarm(Swarm):
    """A swarm whose volunteers take lognormal times, and that notes them and when each update begins."""

    idle_turn_s = IDLE_TURN_S

    def __init__(self, config: SwarmConfig, fleet: SimulatedFleet, folder: Path) -> None:
        self.paces: dict[int, float] = {}
        """Mean seconds of a volunteer's groups, by its number."""
        self.began_s: list[float] = []
        self._fleet = fleet
        self._times = random.Random(f"times/{config.seed}")  # noqa: S311 - simulated
        self._presences: dict[int, _Presence] = {}
        super().__init__(config, tiny_model(config.task, seed=config.seed), folder)

    def run_to_the_end(self) -> None:
        """Make the updates; nothing is evaluated."""
        while not self._finished and self.network.elapsed < self._config.max_virtual_s:
            self.network.run_for(30.0)
        self._learner.close()
        for volunteer in self._volunteers.values():
            volunteer.role.close()
            volunteer.blobs.close()

    def _volunteer_turn(self, host: Any, pace: float) -> float:
        self.paces[host.number] = pace
        factor = math.exp(self._times.gauss(0.0, _SPREAD) - _SPREAD**2 / 2)
        if self._fleet.share_of_time < 1.0:
            if host.number not in self._presences:
                self._presences[host.number] = _Presence(self._fleet, self._times)
            presence = self._presences[host.number]
            # What it cannot complete before it leaves is lost, and need not be sampled.
            if away_s := presence.away_s(self.network.elapsed, pace * factor):
                return away_s
        return super()._volunteer_turn(host, pace * factor)

    def _learner_turn(self, learner: Learner) -> float:
        wait = super()._learner_turn(learner)
        if len(self._metrics) > len(self.began_s):
            self.began_s.append(self.network.elapsed)
        return wait


def run_plan_bench(
    *, updates: int, seed: int, fleets: int, on_progress: Callable[[str, float], None] = lambda *_: None
) -> Iterator[PlanRow]:
    """A row for each fleet, as soon as its swarm has made its updates."""
    drawn = drawn_fleets(seed, fleets, updates=updates)
    for number, fleet in enumerate(drawn):
        on_progress(fleet.name, number / len(drawn))
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
    machines = [
        SamplingMachine(
            group_s=pace,
            slots=_SLOTS,
            spread=_SPREAD,
            switch_s=IDLE_TURN_S,
            together=True,
            share_of_time=fleet.share_of_time,
            session_s=fleet.session_s,
        )
        for pace in swarm.paces.values()
    ]
    # A learner on virtual time never waits for slow machines: it knows no time that an update took.
    expected = forecast(machines, demand, updates=updates, pace_limit=0.0)
    capacity = capacity_of(machines, demand)
    began = swarm.began_s
    first = len(began) // 4
    return PlanRow(
        fleet=fleet.name,
        saturated=capacity.saturated,
        formula=capacity.utilization,
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
        groups_per_update=_GROUPS,
        step_seconds=fleet.step_s,
        sample_seconds=fleet.sample_s,
        staleness_bound=fleet.staleness,
        publish_every=fleet.publish_every,
        seed=seed,
    )
    with tempfile.TemporaryDirectory(prefix="p2prl-plan-") as folder:
        swarm = _TimedSwarm(config, fleet, Path(folder))
        swarm.run_to_the_end()
    return swarm


def as_markdown(rows: list[PlanRow]) -> str:
    """Rows as a Markdown table."""
    titles = ("fleet", "saturated", "formula", "predicted", "low", "high", "realized", "updates")
    lines = [f"| {' | '.join(titles)} |", "|---|---" + "|---:" * 6 + "|"]
    lines += [
        f"| {row.fleet} | {'yes' if row.saturated else 'no'} | {row.formula:.2f} "
        f"| {row.predicted:.2f} | {row.low:.2f} | {row.high:.2f} | {row.realised:.2f} | {row.updates} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
