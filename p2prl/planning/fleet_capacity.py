"""Arithmetic of a fleet: what an update takes, what each kind of machine samples, and when versions reach it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from p2prl.errors import MachineError
from p2prl.learner.timing.capacity import Capacity, Demand, SamplingMachine, broadcast_s, capacity_of
from p2prl.learner.training.memory_config import OptimizerStates, Precision
from p2prl.learner.training.memory_model import TrainingSetup, memory_needs
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.planning.card_speeds import (
    MOST_SLOTS,
    card_named,
    decode_step_s,
    sampling_bytes,
    slots_that_fit,
    training_speed,
)
from p2prl.planning.fleet import Fleet, MachineRow, measured_speed
from p2prl.planning.measured_figures import MEASURED, MOST_UPLOAD_MBIT, OFFERED_SHARE, patch_ratio, scaled_s
from p2prl.quantity_text import size_text

_MEASURED_SLOTS = 4
_BYTES_PER_MBIT = 1e6 / 8

_SETTINGS: tuple[tuple[Precision, OptimizerStates], ...] = (("bf16", "full"), ("bf16_stochastic", "8bit"))
"""Settings of a learner's memory that are tried, the plainest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateTime:
    """Seconds of an update when no group is waited for. Training and replays share the learner's card, unless replays
    have cards of their own."""

    training_s: float
    replay_s: float
    """Of all its groups on one card."""
    replayers: int
    """Cards that only replay."""
    copying_s: float
    """Of its part of a version."""
    source: str
    """Where the figures are from."""

    @property
    def total_s(self) -> float:
        """Everything that the learner's card does."""
        return self.training_s + (0.0 if self.replayers else self.replay_s) + self.copying_s


@dataclass(frozen=True, kw_only=True, slots=True)
class RowCapacity:
    """What machines of one kind bring."""

    row: MachineRow
    tokens_per_s: float
    """Of one machine while it samples; 0 if it cannot."""
    source: str
    """Where the speed is from, or why there is none."""
    machine: SamplingMachine | None
    """One of them; None if it cannot sample."""

    @property
    def groups_per_s(self) -> float:
        """Accepted groups a second of all of them."""
        return self.row.count * self.machine.groups_per_s if self.machine else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetCapacity:
    """A fleet's arithmetic."""

    update: UpdateTime
    demand: Demand
    patch_bytes: float
    rows: tuple[RowCapacity, ...]
    capacity: Capacity

    @property
    def interval_s(self) -> float:
        """Seconds between updates by the closed form; infinite if nobody samples."""
        return self.demand.update_s / self.capacity.utilization if self.capacity.utilization else math.inf

    @property
    def machines(self) -> tuple[SamplingMachine, ...]:
        """Every machine that can sample."""
        return _every(self.rows)


def _every(rows: tuple[RowCapacity, ...]) -> tuple[SamplingMachine, ...]:
    return tuple(row.machine for row in rows if row.machine is not None for _ in range(row.row.count))


def capacity_of_fleet(fleet: Fleet, folder: Path) -> FleetCapacity:
    """The arithmetic of a fleet whose file lies in `folder`. `MachineError` if the learner's card cannot train."""
    run = fleet.run
    update = _update_time(fleet)
    patch_bytes = run.version_bytes / patch_ratio(run.publish_every)
    rows = tuple(_row_capacity(fleet, row, folder) for row in fleet.machines)
    rows = _with_delays(fleet, rows, patch_bytes)
    demand = Demand(
        groups_per_update=run.groups_per_update,
        update_s=update.total_s,
        staleness_bound=run.staleness,
        publish_every=run.publish_every,
        replay_per_s=run.groups_per_update * update.replayers / update.replay_s if update.replayers else math.inf,
    )
    return FleetCapacity(
        update=update, demand=demand, patch_bytes=patch_bytes, rows=rows, capacity=capacity_of(_every(rows), demand)
    )


def _update_time(fleet: Fleet) -> UpdateTime:
    run, learner = fleet.run, fleet.learner
    row_tokens = run.group_size * run.row_tokens
    training, replay, sources = learner.update_s, learner.replay_s, []
    if learner.update_s:
        sources.append("update_s")
    if learner.replay_s:
        sources.append("replay_s")
    if learner.card:
        card = card_named(learner.card)
        speed = training_speed(card, run.known_model)
        settings = _fitting_settings(fleet, card.memory_gb)
        training = training or run.groups_per_update * row_tokens * speed.token_s
        replay = replay or row_tokens * speed.replay_token_s
        sources.append(
            f"{card.title}: {card.bf16_tflops:g} TFLOPS, of which training reaches {speed.share:.2f}"
            f" (benchmarks/gpu.md), {settings}"
        )
    return UpdateTime(
        training_s=training,
        replay_s=replay * run.groups_per_update,
        replayers=learner.replayers if replay else 0,
        copying_s=scaled_s("waits_s", run.version_bytes) / run.publish_every,
        source="; ".join(sources),
    )


def _fitting_settings(fleet: Fleet, memory_gb: float) -> str:
    """Settings with which training and replays fit a card's memory. `MachineError` if none does."""
    run, least = fleet.run, 0
    for precision, states in _SETTINGS:
        setup = TrainingSetup(precision=precision, states=states, replay_bytes=2, published_bytes=0, device_type="cuda")
        rule = MicroBatchRule(tokens=run.row_tokens, checkpointing=True)
        least = memory_needs(run.known_model.shape, setup, rule).total
        if least <= memory_gb * 1e9:
            return f"{precision} with {states} optimizer states in {size_text(least)}"
    raise MachineError(
        f"training {run.known_model.title} takes {size_text(least)} at least, and the learner's"
        f" {card_named(fleet.learner.card).title} has {memory_gb:g} GB",
        remedy="Choose a smaller --model or a larger card; adapters need less (p2prl init --lora), which plan does not"
        " predict.",
    )


def _row_capacity(fleet: Fleet, row: MachineRow, folder: Path) -> RowCapacity:
    run, model = fleet.run, fleet.run.known_model
    slots = row.slots or _MEASURED_SLOTS
    if row.tokens_per_s:
        speed, source = row.tokens_per_s, "as given"
    elif row.measured is not None:
        speed, source = measured_speed(folder / row.measured, model)
    else:
        card = card_named(row.card)
        fits = slots_that_fit(card, model, row_tokens=run.row_tokens, group_size=run.group_size)
        if not fits:
            source = f"{size_text(sampling_bytes(model))} needed in 16 bits, {card.memory_gb:g} GB on the card"
            return RowCapacity(row=row, tokens_per_s=0.0, source=source, machine=None)
        slots = min(row.slots or MOST_SLOTS, fits)
        batch = slots * run.group_size
        step = decode_step_s(card, model, batch=batch, context=run.prompt_tokens + run.completion_tokens / 2)
        speed, source = batch / step, f"{batch} completions, {1000 * step:.0f} ms a token of each, predicted"
    machine = SamplingMachine(
        group_s=slots * run.group_size * run.completion_tokens / speed,
        slots=slots,
        spread=run.length_spread,
        share_of_time=row.share_of_time,
        session_s=row.session_hours * 3600.0,
        acceptance=row.acceptance,
    )
    return RowCapacity(row=row, tokens_per_s=speed, source=source, machine=machine)


def _with_delays(fleet: Fleet, rows: tuple[RowCapacity, ...], patch_bytes: float) -> tuple[RowCapacity, ...]:
    """Rows whose machines know when a version reaches them: encoded, sent, decoded."""
    shared = [
        _offered(row.row.upload_mbit) * row.row.share_of_time
        for row in rows
        if row.machine is not None
        for _ in range(row.row.count)
    ]
    version_bytes = fleet.run.version_bytes
    elsewhere_s = scaled_s("head_s", version_bytes) + version_bytes / MEASURED["decode_bytes_s"].value
    found = []
    for row in rows:
        if row.machine is None:
            found.append(row)
            continue
        sent_s = broadcast_s(
            patch_bytes,
            learner_bytes_s=_offered(fleet.learner.upload_mbit),
            down_bytes_s=row.row.download_mbit * _BYTES_PER_MBIT,
            up_bytes_s=shared,
        )
        found.append(replace(row, machine=replace(row.machine, version_delay_s=elsewhere_s + sent_s)))
    return tuple(found)


def _offered(upload_mbit: float) -> float:
    """Bytes a second of an uplink that weights may use."""
    return min(upload_mbit * OFFERED_SHARE, MOST_UPLOAD_MBIT) * _BYTES_PER_MBIT
