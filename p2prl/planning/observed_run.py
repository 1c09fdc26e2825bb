"""A run as its learner has seen it: what updates take, what each volunteer brings, and when versions reach them. Pure.

Everything is from groups that the learner itself judged and from its own clock; what peers say of their speed counts
for nothing. A volunteer is a machine that brings one group at a time:

    rate       verified groups over the seconds in which it was there
    absences   silences of more than `_SILENCES` of its usual gaps, and of more than `_LEAST_SILENCE` updates
    lag        median time from the signature of a version to the first group that was sampled with it

While groups pile up volunteers wait for receipts, so their rates are what they bring, not what they could.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median, variance

from p2prl.errors import ConfigError
from p2prl.learner.journal.deliveries import Deliveries, Delivery
from p2prl.learner.timing.capacity import Demand, SamplingMachine, capacity_of
from p2prl.learner.timing.training_stage import Activity, share_at_work
from p2prl.plain_text import counted
from p2prl.planning.fleet import Fleet, MachineRow, PlannedLearner, PlannedRun
from p2prl.planning.fleet_capacity import FleetCapacity, RowCapacity, UpdateTime
from p2prl.time_text import duration_text

LEAST_UPDATES = 8
"""Updates since the learner's start below which a run tells too little."""

_MOST_UPDATES = 256
"""Newest updates that are looked at: what was before them says little of the volunteers that are there now."""

_RESTART_S = 30.0
"""A line of the metrics that is this much later than its seconds tell is the first after a start of the learner."""

_SILENCES, _LEAST_SILENCE = 8.0, 3.0
_SHORT = 0.25
"""A quarter of the time lies in gaps shorter than the usual one: those within a burst are short, absences long."""

_PARTS = 8
"""Parts of the time, by which a flow of groups shows how unsteady it is."""

_MOST_ROWS = 24
"""Volunteers that are told apart. The others, of the least rates, are one row."""

_MOST_HOURS = 1e5


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedRun:
    """Figures of some of a run's newest updates."""

    fleet: Fleet
    """As a plan describes it, a row for each volunteer."""
    machines: tuple[SamplingMachine, ...]
    """One of each row."""
    sources: tuple[str, ...]
    """What is known of each row."""
    update: UpdateTime
    replay_per_s: float
    """Groups a second that the replays check; infinite where that was not measured."""
    realized: float
    """Share of the time in which training had groups."""
    seconds: float
    """Time that is looked at."""
    updates: int
    patch_bytes: float
    expired_share: float
    """Groups that grew too stale, of all."""
    left: int
    """Volunteers that have left, and are in no row."""

    def capacity(self, fleet: Fleet) -> FleetCapacity:
        """The arithmetic of this run with other settings, or more of some volunteer."""
        now, run = self.fleet.run, fleet.run
        update = replace(
            self.update,
            training_s=self.update.training_s * run.groups_per_update / now.groups_per_update,
            copying_s=self.update.copying_s * now.publish_every / run.publish_every,
        )
        demand = Demand(
            groups_per_update=run.groups_per_update,
            update_s=update.total_s,
            staleness_bound=run.staleness,
            publish_every=run.publish_every,
            replay_per_s=self.replay_per_s * max(1, fleet.learner.replayers) / max(1, self.fleet.learner.replayers),
        )
        seen = zip(fleet.machines, self.machines, self.sources, strict=True)
        rows = tuple(
            RowCapacity(row=row, tokens_per_s=row.tokens_per_s, source=source, machine=machine)
            for row, machine, source in seen
        )
        machines = [
            machine for row, machine in zip(fleet.machines, self.machines, strict=True) for _ in range(row.count)
        ]
        return FleetCapacity(
            update=update,
            demand=demand,
            patch_bytes=self.patch_bytes,
            rows=rows,
            capacity=capacity_of(machines, demand),
        )

    @property
    def usual_row(self) -> int:
        """The row of which more are advised: the one of the median rate."""
        order = sorted(range(len(self.machines)), key=lambda row: self.machines[row].groups_per_s)
        return order[len(order) // 2]


def newest_updates(lines: Sequence[Mapping[str, object]]) -> list[dict[str, float]]:
    """Numbers of the updates since the learner's start, without the first, which waited for volunteers; the newest
    `_MOST_UPDATES` at most. `lines` are those of metrics.jsonl. `ConfigError` if there are too few."""
    updates = [{key: float(v) for key, v in line.items() if isinstance(v, int | float)} for line in lines]
    updates = [each for each in updates if {"time", "seconds", "training/busy"} <= set(each)]
    begins = [
        place
        for place, (before, after) in enumerate(pairwise(updates), start=1)
        if after["time"] - before["time"] > after["seconds"] + _RESTART_S
    ]
    updates = updates[(begins[-1] if begins else 0) + 1 :][-_MOST_UPDATES:]
    if len(updates) < LEAST_UPDATES:
        raise ConfigError(
            f"the run has {counted(len(updates), 'update')} since its learner's start that tell its pace, and"
            f" {LEAST_UPDATES} are needed",
            remedy="Wait for more updates, or plan before the run: p2prl plan --fleet FILE.",
        )
    return updates


def observed_run(
    updates: Sequence[Mapping[str, float]],
    deliveries: Deliveries,
    *,
    run: PlannedRun,
    name_of: Callable[[bytes], str],
) -> ObservedRun:
    """The run in the time of these updates, from `newest_updates`; `deliveries` are those since they began.

    `run` has the settings; groups and interval are the updates' own.
    """
    newest, count = updates[-1], len(updates)
    seconds = math.fsum(each["seconds"] for each in updates)
    ends = newest["time"]
    begins = ends - seconds

    def spent(*activities: Activity) -> float:
        shares = [each["seconds"] * each.get(f"training/{key}", 0.0) for each in updates for key in activities]
        return math.fsum(shares) / count

    at_work = math.fsum(each["seconds"] * share_at_work(each) for each in updates)
    run = replace(run, groups_per_update=int(newest["groups"]), publish_every=int(newest["publish_every"]))
    replayers = int(newest.get("replay/replayers", 0))
    update = UpdateTime(
        training_s=spent(Activity.UPDATE, Activity.CHECKPOINT),
        replay_s=0.0,
        replayers=replayers,
        copying_s=spent(Activity.PUBLISH),
        source=f"measured in the last {counted(count, 'update')}, {duration_text(seconds)}",
    )
    silence_s = _LEAST_SILENCE * seconds / count
    by_peer: defaultdict[bytes, list[Delivery]] = defaultdict(list)
    for each in deliveries.groups:
        if begins <= each.arrived <= ends:
            by_peer[each.peer].append(each)
    tokens = run.group_size * newest.get("completion_tokens_mean", float(run.completion_tokens))
    found = [
        _volunteer(peer, groups, deliveries.published, begins=begins, ends=ends, silence_s=silence_s)
        for peer, groups in by_peer.items()
    ]
    here = sorted((each for each in found if each is not None), key=lambda each: -each.machine.groups_per_s)
    rows = _rows(here, name_of, tokens_per_group=tokens)
    if not rows:
        raise ConfigError(
            "no volunteer of the run has brought a verified group lately",
            remedy="Wait for volunteers, or plan before the run: p2prl plan --fleet FILE.",
        )
    judged = len(deliveries.groups)
    return ObservedRun(
        fleet=Fleet(
            learner=PlannedLearner(update_s=update.total_s, replayers=replayers),
            machines=tuple(row for row, _, _ in rows),
            run=replace(run, completion_tokens=max(1, round(tokens / run.group_size))),
        ),
        machines=tuple(machine for _, machine, _ in rows),
        sources=tuple(source for _, _, source in rows),
        update=update,
        replay_per_s=newest.get("replay/groups_per_s", math.inf),
        realized=at_work / seconds,
        seconds=seconds,
        updates=count,
        patch_bytes=newest.get("published/patch_bytes", 0.0),
        expired_share=deliveries.expired / (deliveries.expired + judged) if judged else 0.0,
        left=len(found) - len(here),
    )


@dataclass(frozen=True, slots=True)
class _Volunteer:
    peer: bytes
    groups: int
    """Verified ones."""
    failed: int
    machine: SamplingMachine


def _volunteer(
    peer: bytes,
    groups: Sequence[Delivery],
    published: Mapping[int, float],
    *,
    begins: float,
    ends: float,
    silence_s: float,
) -> _Volunteer | None:
    """A volunteer as a machine; None for one that has left, or of which nothing has passed."""
    passed = [each.arrived for each in groups if each.passed]
    if len(passed) < 2:
        return None
    gaps = sorted(after - before for before, after in pairwise(passed))
    usual_s = _usual(gaps)
    longest_s = max(_SILENCES * usual_s, silence_s)
    absences = [gap for gap in gaps if gap > longest_s]
    silent_s = ends - passed[-1]
    if silent_s > longest_s + max(absences, default=0.0):
        return None
    # One that came meanwhile is measured from its first group on: what it sampled before took time that nobody saw.
    since = begins if passed[0] - begins <= longest_s else passed[0]
    away_s = math.fsum(absences) + (silent_s if silent_s > longest_s else 0.0)
    there_s = max(ends - since - away_s, usual_s)
    share = there_s / max(ends - since, there_s)
    group_s = there_s / max(sum(at > since for at in passed), 1)
    return _Volunteer(
        peer,
        len(passed),
        len(groups) - len(passed),
        SamplingMachine(
            group_s=group_s,
            slots=1,
            spread=_spread([since, *passed], longest_s, there_s),
            share_of_time=share,
            session_s=there_s / (len(absences) + 1) if share < 1.0 else math.inf,
            version_delay_s=max(0.0, _lag(groups, published) - group_s),
        ),
    )


def _usual(gaps: Sequence[float]) -> float:
    """The gap, of ascending ones, below which a quarter of the time lies."""
    left = _SHORT * math.fsum(gaps)
    for gap in gaps:
        left -= gap
        if left <= 0.0:
            return gap
    return gaps[-1]


def _lag(groups: Sequence[Delivery], published: Mapping[int, float]) -> float:
    """Median seconds from a version's signature to the first group of it; 0 of none."""
    first: dict[int, float] = {}
    for each in groups:
        first.setdefault(each.version, each.arrived)
    lags = [at - published[version] for version, at in first.items() if version in published]
    return max(0.0, median(lags)) if lags else 0.0


def _spread(times: Sequence[float], longest_s: float, there_s: float) -> float:
    """Spread of lognormal times that come as unsteadily as these groups did while their volunteer was there.

    In many groups the variance of the number that comes in a while is their mean times the squared coefficient of
    variation of the time between them.
    """
    place, numbers = 0.0, [0] * _PARTS
    for gap in (after - before for before, after in pairwise(times)):
        place += gap if gap <= longest_s else 0.0
        numbers[min(int(place / there_s * _PARTS), _PARTS - 1)] += 1
    return math.sqrt(math.log1p(variance(numbers) / fmean(numbers)))


def _rows(
    here: Sequence[_Volunteer], name_of: Callable[[bytes], str], *, tokens_per_group: float
) -> list[tuple[MachineRow, SamplingMachine, str]]:
    rows = []
    for each in here if len(here) <= _MOST_ROWS else here[: _MOST_ROWS - 1]:
        failed = f", {each.failed} rejected" if each.failed else ""
        rows.append(
            (
                _row(name_of(each.peer), 1, each.machine, tokens_per_group),
                each.machine,
                f"{counted(each.groups, 'verified group')}{failed}",
            )
        )
    if others := here[len(rows) :]:
        machine = SamplingMachine(
            group_s=1.0 / fmean([1.0 / each.machine.group_s for each in others]),
            slots=1,
            spread=fmean([each.machine.spread for each in others]),
            share_of_time=fmean([each.machine.share_of_time for each in others]),
            session_s=median([each.machine.session_s for each in others]),
            version_delay_s=median([each.machine.version_delay_s for each in others]),
        )
        if machine.share_of_time < 1.0 and math.isinf(machine.session_s):
            machine = replace(machine, session_s=_MOST_HOURS * 3600.0)
        groups = counted(sum(each.groups for each in others), "verified group")
        rows.append((_row(f"{len(others)} others", len(others), machine, tokens_per_group), machine, groups))
    return rows


def _row(name: str, count: int, machine: SamplingMachine, tokens_per_group: float) -> MachineRow:
    return MachineRow(
        name=name,
        count=count,
        tokens_per_s=tokens_per_group / machine.group_s,
        slots=machine.slots,
        share_of_time=machine.share_of_time,
        session_hours=min(_MOST_HOURS, max(0.01, machine.session_s / 3600.0)),
    )
