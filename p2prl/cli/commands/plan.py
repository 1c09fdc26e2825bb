"""`p2prl plan`: whether a fleet of machines keeps a learner at work, before a run begins or beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from p2prl.cli.benchmark import print_table
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.errors import ConfigError
from p2prl.plain_text import counted
from p2prl.quantity_text import percent, quantity, size_text

_HEADING = (
    "| machines | count | tokens/s each | groups/s | of the need | version after | speed from |\n"
    "|---|---:|---:|---:|---:|---:|---|"
)

if TYPE_CHECKING:
    from p2prl.planning.cheapest_machines import Activation, Affordable
    from p2prl.planning.fleet import Fleet
    from p2prl.planning.fleet_advice import Advice, Arithmetic
    from p2prl.planning.fleet_capacity import FleetCapacity, RowCapacity
    from p2prl.planning.observed_run import ObservedRun
    from p2prl.planning.rank_plan_record import HostChoice
    from p2prl.planning.utilization_forecast import Forecast


@dataclass(frozen=True, kw_only=True, slots=True)
class _Subject:
    """What is planned: a fleet of a file, or a run that is observed."""

    title: str
    fleet: Fleet
    arithmetic: Arithmetic
    pace_limit: float
    observed: ObservedRun | None = None
    host: HostChoice | None = None
    """The plans of ranks that a profile found for the run, if it trains by `plan = "auto"`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """Everything that is said of it."""

    subject: _Subject
    found: FleetCapacity
    advice: Advice
    expected: Forecast
    activation: Activation | None
    affordable: Affordable | None


def plan(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run folder, also while its learner works. Default: none, give --fleet."),
    ] = None,
    fleet: Annotated[
        Path | None, typer.Option("--fleet", help="TOML file of the learner and the machines. Default: none, give RUN.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="0.5b, 1.5b, 3b, 7b, 8b, 14b or 32b. Default: the file's, else 7b.")
    ] = None,
    staleness: Annotated[
        int | None,
        typer.Option(
            "--staleness", min=1, help="Largest staleness, in updates. Default: the file's, else 64; the run's."
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", min=0.0, help="Most that machines may cost an hour, by their prices. Default: any."),
    ] = None,
    updates: Annotated[int, typer.Option("--updates", min=8, max=10_000, help="Updates of a simulated run.")] = 100,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Forecast whether machines keep a learner at work: a fleet's before a run, or a run's own volunteers.

    Contacts nobody, and needs no card.
    """
    from p2prl.planning.cheapest_machines import activation_of, affordable
    from p2prl.planning.fleet_advice import advise
    from p2prl.planning.utilization_forecast import forecast

    began = time.monotonic()
    subject = _subject(run, fleet, {"model": model, "staleness": staleness})
    found = subject.arithmetic(subject.fleet)
    more_of = None if subject.observed is None else [subject.observed.usual_row]
    advice = advise(subject.fleet, subject.arithmetic, more_of=more_of)
    with progress_bar("simulation", quiet=as_json) as on_progress:
        expected = forecast(
            found.machines,
            found.demand,
            updates=updates,
            pace_limit=subject.pace_limit,
            seed=seed,
            on_progress=lambda share: on_progress("virtual time", share),
        )
    answer = _Answer(
        subject=subject,
        found=found,
        advice=advice,
        expected=expected,
        activation=activation_of(found),
        affordable=None if budget is None else affordable(found, budget),
    )
    if as_json:
        emit({**plan_document(answer), "seed": seed, "wall_s": time.monotonic() - began})
        return
    _show(answer)


def _subject(run: Path | None, fleet: Path | None, changed: dict[str, Any]) -> _Subject:
    """What to plan, with the options that were given."""
    if (run is None) == (fleet is None):
        raise ConfigError(
            "give one of a run folder and --fleet",
            remedy="p2prl plan --fleet fleet.toml before a run, p2prl plan runs/NAME once it makes updates.",
        )
    changed = {name: value for name, value in changed.items() if value is not None}
    if fleet is not None:
        from p2prl.planning.fleet import read_fleet
        from p2prl.planning.fleet_capacity import capacity_of_fleet
        from p2prl.planning.queue_simulation import PACE_LIMIT

        planned = read_fleet(fleet)
        planned = replace(planned, run=replace(planned.run, **changed))
        arithmetic = partial(capacity_of_fleet, folder=fleet.parent)
        title = planned.run.known_model.title
        return _Subject(title=title, fleet=planned, arithmetic=arithmetic, pace_limit=PACE_LIMIT)
    from p2prl.planning.rank_plan_record import read_choice
    from p2prl.planning.run_reading import read_observed

    assert run is not None
    if "model" in changed:
        raise ConfigError("--model is for a fleet's file", remedy="Leave it out: a run has its model.")
    title, observed, pace_limit = read_observed(run)
    planned = replace(observed.fleet, run=replace(observed.fleet.run, **changed))
    return _Subject(
        title=title,
        fleet=planned,
        arithmetic=observed.capacity,
        pace_limit=pace_limit,
        observed=observed,
        host=read_choice(run),
    )


def _show(answer: _Answer) -> None:
    run, found = answer.subject.fleet.run, answer.found
    update, demand = found.update, found.demand
    say(
        f"run          {answer.subject.title}, {run.groups_per_update} groups of {run.group_size} × "
        f"{run.completion_tokens:,} tokens an update, S = {run.staleness}, κ = {run.publish_every}"
    )
    beside = answer.subject.observed is not None or update.replayers
    replays = "" if beside else f" + {update.replay_s:.1f} s replays"
    say(
        f"an update    {update.total_s:.1f} s = {update.training_s:.1f} s training{replays}"
        f" + {update.copying_s:.1f} s copying a version"
    )
    say(f"             {update.source}")
    if math.isfinite(demand.replay_per_s):
        by = f", by {counted(update.replayers, 'replayer')}" if update.replayers else ""
        say(f"replays      {demand.replay_per_s:.3g} groups/s, beside training{by}")
    say(
        f"needed       {run.groups_per_update} groups in {update.total_s:.1f} s = {demand.groups_per_s:.3g} groups/s ="
        f" {quantity(round(demand.groups_per_s * run.group_size * run.completion_tokens))} tokens/s"
    )
    say(f"a version    {size_text(found.patch_bytes)}")
    say("")
    print_table(_HEADING)
    for row in found.rows:
        print_table(_row_line(row, demand.groups_per_s))
    say("")
    _show_forecast(answer)
    advice = answer.advice
    say(f"bottleneck   {advice.bottleneck}: {advice.sentence}")
    for change in advice.changes:
        say(f"would help   {change.text}: {percent(round(change.utilization, 2))}")
    if (more := advice.replayers) is not None:
        where = "a card of its own" if more.count == 1 else "cards of their own"
        interval = f"an update every {more.interval_s:.1f} s, not {more.before_s:.1f}"
        say(f"would help   {counted(more.count, 'replayer')} on {where}: {interval}")
    if answer.activation is not None:
        share = percent(round(answer.activation.share_of_cost, 2))
        say(f"enough       {_chosen(found, answer.activation.counts)}, {share} of the fleet's price")
    if answer.subject.host is not None:
        from p2prl.planning.rank_plan_record import choice_lines

        for number, line in enumerate(choice_lines(answer.subject.host)):
            say(f"{'host' if not number else '':<13}{line}")
    if (paid := answer.affordable) is not None:
        names = _chosen(found, paid.counts) or "nobody"
        say(
            f"budget       {names} for {paid.cost:.4g} an hour of {paid.budget:.4g}:"
            f" {percent(round(paid.utilization, 2))} by the formula"
        )


def _show_forecast(answer: _Answer) -> None:
    expected, observed = answer.expected, answer.subject.observed
    say(f"at work      {_share_text(expected)}")
    say(f"             by the formula {percent(round(answer.found.capacity.utilization, 2))}")
    if observed is not None:
        left = f"; {observed.left} left meanwhile" if observed.left else ""
        say(f"             so far {percent(round(observed.realized, 2))}, in {observed.updates} updates{left}")
    if expected.utilization > 0.0:
        say(f"an update    every {expected.interval_s:.1f} s, {86_400 / expected.interval_s:,.0f} a day")
        say(f"staleness    {expected.staleness_mean:.1f} in the mean, 95 % within {expected.staleness_p95:.0f}")
        say(f"lost to age  {percent(expected.lost_share)} of the groups")
    if observed is not None and observed.expired_share:
        say(f"             so far {percent(round(observed.expired_share, 3))}")


def _chosen(found: FleetCapacity, counts: Sequence[int]) -> str:
    rows = zip(found.rows, counts, strict=True)
    return ", ".join(f"{count} of {row.row.count} {row.row.name}" for row, count in rows if count)


def _share_text(expected: Forecast) -> str:
    mean, low, high = (percent(round(share, 2)) for share in (expected.utilization, expected.low, expected.high))
    runs = f"eight of ten simulated runs ({expected.runs} of {expected.updates} updates)"
    return f"{mean} of the learner's time, {low} to {high} in {runs}"


def _row_line(row: RowCapacity, needed: float) -> str:
    if row.machine is None:
        return f"| {row.row.name} | {row.row.count} | – | – | – | – | {row.source} |"
    return (
        f"| {row.row.name} | {row.row.count} | {row.tokens_per_s:,.0f} | {row.groups_per_s:.3g} |"
        f" {percent(row.groups_per_s / needed)} | {row.machine.version_delay_s:.0f} s | {row.source} |"
    )


def plan_document(answer: _Answer) -> dict[str, object]:
    """The document printed by `--json`."""
    fleet, found, advice, expected = answer.subject.fleet, answer.found, answer.advice, answer.expected
    capacity, observed = found.capacity, answer.subject.observed
    replay_per_s = found.demand.replay_per_s
    return {
        "title": answer.subject.title,
        "run": asdict(fleet.run),
        "update": {**asdict(found.update), "total_s": found.update.total_s},
        "needed_groups_per_s": found.demand.groups_per_s,
        "replay_groups_per_s": replay_per_s if math.isfinite(replay_per_s) else None,
        "patch_bytes": found.patch_bytes,
        "machines": [_machine_document(row) for row in found.rows],
        "observed": None
        if observed is None
        else {
            "updates": observed.updates,
            "seconds": observed.seconds,
            "realised": observed.realized,
            "expired_share": observed.expired_share,
            "left": observed.left,
        },
        "formula": {
            "utilization": capacity.utilization,
            "sampled_groups_per_s": capacity.sampled_per_s,
            "useful_groups_per_s": capacity.useful_per_s,
        },
        "forecast": {**asdict(expected), "interval_s": expected.interval_s if expected.utilization else None},
        "saturated": capacity.saturated,
        "bottleneck": advice.bottleneck,
        "sentence": advice.sentence,
        "changes": [asdict(change) for change in advice.changes],
        "replayers": None if advice.replayers is None else asdict(advice.replayers),
        "activation": None if answer.activation is None else asdict(answer.activation),
        "affordable": None if answer.affordable is None else asdict(answer.affordable),
        "host": None if answer.subject.host is None else msgspec.to_builtins(answer.subject.host),
    }


def _machine_document(row: RowCapacity) -> dict[str, object]:
    return {
        "name": row.row.name,
        "count": row.row.count,
        "tokens_per_s": row.tokens_per_s,
        "groups_per_s": row.groups_per_s,
        "share_of_time": row.row.share_of_time,
        "slots": row.machine.slots if row.machine else 0,
        "version_delay_s": row.machine.version_delay_s if row.machine else None,
        "source": row.source,
    }
