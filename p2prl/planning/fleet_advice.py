"""Advice on a fleet: what holds its learner back, in a sentence, and which single changes keep it at work.

Each change is tried on the closed form, from the smallest on, until the learner is at work. All of them are tried: a
fleet's arithmetic takes less than a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from p2prl.errors import P2PRLError
from p2prl.learner.timing.capacity import capacity_of
from p2prl.plain_text import counted
from p2prl.planning.fleet import MOST_MACHINES, Fleet
from p2prl.planning.fleet_capacity import FleetCapacity
from p2prl.protocol import limits
from p2prl.quantity_text import percent

_ENOUGH = 0.995
"""Utilization from which on the learner counts as at work all the time."""

_LEAST_GAIN = 0.02
"""Utilization that a change must add to be named."""

_SURPLUS = 1.2
"""Useful groups over what is needed from which on the fleet has more than it needs."""

_FACTORS = (2, 4, 8, 16, 32)

_MOST_REPLAYERS = 8
"""Cards that only replay, tried one after the other: those of a host."""

_WORTH_REPLAYERS = 0.9
"""Time between updates over that without further replayers up to which they are advised."""


Arithmetic = Callable[[Fleet], FleetCapacity]
"""The arithmetic of a fleet, before a run or of one that is observed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change of the plan, and the utilization that the closed form gives with it."""

    setting: str
    text: str
    utilization: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MoreReplayers:
    """Replays on cards of their own, and what the closed form gives with them."""

    count: int
    """Cards that only replay: the fewest with the best pace, up to a fiftieth."""
    interval_s: float
    """Seconds between updates."""
    before_s: float
    """Seconds between updates as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """What holds a fleet back, and what helps."""

    bottleneck: str
    """training, replay, volunteers, memory, links, publishing or staleness."""
    sentence: str
    changes: tuple[Change, ...]
    replayers: MoreReplayers | None
    """Cards that should only replay; None where more of them help little."""


def advise(fleet: Fleet, arithmetic: Arithmetic, *, more_of: Sequence[int] | None = None) -> Advice:
    """Advice on a fleet. More machines are tried of the rows `more_of`, or of each that can sample."""
    found = arithmetic(fleet)
    if more_of is None:
        more_of = [number for number, row in enumerate(found.rows) if row.machine is not None]
    bottleneck, sentence = _bottleneck(found)
    changes = tuple(_changes(fleet, found, arithmetic, more_of))
    return Advice(
        bottleneck=bottleneck, sentence=sentence, changes=changes, replayers=_more_replayers(fleet, found, arithmetic)
    )


def _more_replayers(fleet: Fleet, found: FleetCapacity, arithmetic: Arithmetic) -> MoreReplayers | None:
    """See `Advice.replayers`. Each place of the replays has a pace of its own, and the fastest is looked for among
    all."""
    before_s = found.interval_s
    intervals = {
        count: arithmetic(replace(fleet, learner=replace(fleet.learner, replayers=count))).interval_s
        for count in range(fleet.learner.replayers + 1, _MOST_REPLAYERS + 1)
    }
    best_s = min(intervals.values(), default=math.inf)
    if best_s > _WORTH_REPLAYERS * before_s or not math.isfinite(best_s):
        return None
    count = next(count for count, interval_s in intervals.items() if interval_s <= 1.02 * best_s)
    return MoreReplayers(count=count, interval_s=intervals[count], before_s=before_s)


def _bottleneck(found: FleetCapacity) -> tuple[str, str]:
    demand, capacity, update = found.demand, found.capacity, found.update
    needed = demand.groups_per_s
    if not found.machines:
        return "memory", "No machine of the fleet can hold the model in 16 bits, so nobody samples."
    if capacity.utilization >= _ENOUGH:
        of_need = f"The fleet brings {capacity.useful_per_s / needed:.1f} times what the learner can use"
        if not update.replayers and update.replay_s > update.training_s:
            return "replay", f"{of_need}; replays take more of its time than training."
        surplus = "" if capacity.useful_per_s <= _SURPLUS * needed else ", so some of its work will be lost or wait"
        return "training", f"{of_need}{surplus}. The learner's own speed is the limit."
    if demand.replay_per_s < min(needed, capacity.useful_per_s):
        share = demand.replay_per_s / needed
        return "replay", f"The learner's replays check {percent(share)} of the groups that it can train on."
    if capacity.sampled_per_s < needed:
        share = capacity.sampled_per_s / needed
        return "volunteers", f"The machines sample {percent(share)} of the groups that the learner can train on."
    late = 1.0 - capacity.useful_per_s / capacity.sampled_per_s
    at_once = capacity_of([replace(each, version_delay_s=0.0) for each in found.machines], demand)
    if at_once.utilization - capacity.utilization > 0.5 * (1.0 - capacity.utilization):
        slowest = max(each.version_delay_s for each in found.machines)
        return (
            "links",
            f"Versions arrive up to {slowest:.0f} s late, so {percent(late)} of the groups would be too stale.",
        )
    mixing = capacity_of([replace(each, drains=False) for each in found.machines], demand)
    if mixing.utilization - capacity.utilization > 0.5 * (1.0 - capacity.utilization):
        idle = 1.0 - capacity.useful_per_s / mixing.useful_per_s
        return (
            "publishing",
            f"Versions come so often that {percent(idle)} of the samplers' time goes in switching to them.",
        )
    return (
        "staleness",
        f"The machines sample enough, but {percent(late)} of their work would be lost, most of it to age.",
    )


def _changes(fleet: Fleet, found: FleetCapacity, arithmetic: Arithmetic, more_of: Sequence[int]) -> Iterator[Change]:
    """The changes that help, each the smallest that suffices, or the best there is."""
    if found.capacity.utilization >= _ENOUGH:
        return
    run, learner = fleet.run, fleet.learner
    bounds = [run.staleness * factor for factor in _FACTORS if run.staleness * factor <= limits.MAX_STALENESS]
    groups = [run.groups_per_update * factor for factor in _FACTORS[:3] if run.groups_per_update * factor <= 4096]
    intervals = range(run.publish_every + 1, min(run.staleness, 64) + 1)
    tried: list[tuple[str, str, Iterable[int], Callable[[int], Fleet]]] = [
        ("staleness", "a staleness bound of {}", bounds, lambda v: replace(fleet, run=replace(run, staleness=v))),
        (
            "publish_every",
            "a version every {} updates",
            intervals,
            lambda v: replace(fleet, run=replace(run, publish_every=v)),
        ),
        (
            "groups_per_update",
            "{} groups an update",
            groups,
            lambda v: replace(
                fleet,
                run=replace(run, groups_per_update=v),
                learner=replace(learner, update_s=learner.update_s * v / run.groups_per_update),
            ),
        ),
        (
            "upload_mbit",
            "an uplink of the learner of {:,} Mbit/s",
            [math.ceil(learner.upload_mbit * factor) for factor in _FACTORS],
            lambda v: replace(fleet, learner=replace(learner, upload_mbit=float(v))),
        ),
    ]
    for setting, text, values, changed in tried:
        best = _smallest(found, arithmetic, ((text.format(value), changed(value)) for value in values))
        if best is not None:
            yield Change(setting=setting, text=best[0], utilization=best[1])
    for index in more_of:
        best = _smallest(found, arithmetic, _more_machines(fleet, index))
        if best is not None:
            yield Change(setting="count", text=best[0], utilization=best[1])


def _more_machines(fleet: Fleet, index: int) -> Iterator[tuple[str, Fleet]]:
    """The fleet with more machines of one kind, some more each time."""
    row, more = fleet.machines[index], 1
    others = sum(each.count for each in fleet.machines)
    while others + more <= MOST_MACHINES:
        machines = (
            *fleet.machines[:index],
            replace(row, count=row.count + more),
            *fleet.machines[index + 1 :],
        )
        yield f"{more} more like {row.name} ({counted(row.count + more, 'machine')})", replace(fleet, machines=machines)
        more = math.ceil(more * 1.1)


def _smallest(
    found: FleetCapacity, arithmetic: Arithmetic, options: Iterable[tuple[str, Fleet]]
) -> tuple[str, float] | None:
    """The first option with which the learner is at work all the time, else the best; None if none helps enough."""
    best: tuple[str, float] | None = None
    for text, fleet in options:
        try:
            share = arithmetic(fleet).capacity.utilization
        except P2PRLError:
            break
        if best is None or share > best[1] + 1e-6:
            best = text, share
        if share >= _ENOUGH:
            break
    return best if best is not None and best[1] >= found.capacity.utilization + _LEAST_GAIN else None
