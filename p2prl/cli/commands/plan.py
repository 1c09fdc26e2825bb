"""`p2prl plan`: whether a fleet of machines keeps a learner at work, before a run begins."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from p2prl.cli.benchmark import print_table
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.quantity_text import percent, quantity, size_text

_HEADING = (
    "| machines | count | tokens/s each | groups/s | of the need | version after | speed from |\n"
    "|---|---:|---:|---:|---:|---:|---|"
)

if TYPE_CHECKING:
    from p2prl.planning.activation import Activation
    from p2prl.planning.bottleneck import Advice
    from p2prl.planning.fleet import Fleet
    from p2prl.planning.fleet_capacity import FleetCapacity, RowCapacity
    from p2prl.planning.utilization_forecast import Forecast


def plan(
    fleet: Annotated[
        Path, typer.Option("--fleet", help="TOML file of the learner and the machines. Default: none, give one.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="0.5b, 1.5b, 3b, 7b, 8b, 14b or 32b. Default: the file's, else 7b.")
    ] = None,
    staleness: Annotated[
        int | None,
        typer.Option("--staleness", min=1, help="Largest staleness, in updates. Default: the file's, else 64."),
    ] = None,
    updates: Annotated[int, typer.Option("--updates", min=8, max=10_000, help="Updates of a simulated run.")] = 100,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Forecast whether a fleet of machines keeps a learner at work, before a run.

    Contacts nobody, and needs no card.
    """
    from p2prl.planning.activation import activation_of
    from p2prl.planning.bottleneck import advise
    from p2prl.planning.fleet import read_fleet
    from p2prl.planning.fleet_capacity import capacity_of_fleet
    from p2prl.planning.utilization_forecast import forecast

    began = time.monotonic()
    planned = read_fleet(fleet)
    changed: dict[str, Any] = {"model": model, "staleness": staleness}
    run = replace(planned.run, **{name: value for name, value in changed.items() if value is not None})
    planned = replace(planned, run=run)
    found = capacity_of_fleet(planned, fleet.parent)
    advice = advise(planned, found, fleet.parent)
    activation = activation_of(found)
    with progress_bar("simulation", quiet=as_json) as on_progress:
        expected = forecast(
            found.machines,
            found.demand,
            updates=updates,
            seed=seed,
            on_progress=lambda share: on_progress("virtual time", share),
        )
    if as_json:
        document = plan_document(planned, found, advice, expected, activation)
        emit({**document, "seed": seed, "wall_s": time.monotonic() - began})
        return
    _show(planned, found, advice, expected, activation)


def _show(
    fleet: Fleet, found: FleetCapacity, advice: Advice, expected: Forecast, activation: Activation | None
) -> None:
    run, update, demand = fleet.run, found.update, found.demand
    say(
        f"run          {run.known_model.title}, {run.groups_per_update} groups of {run.group_size} × "
        f"{run.completion_tokens:,} tokens an update, S = {run.staleness}, κ = {run.publish_every}"
    )
    say(
        f"an update    {update.total_s:.1f} s = {update.training_s:.1f} s training + {update.replay_s:.1f} s replays"
        f" + {update.copying_s:.1f} s copying a version"
    )
    say(f"             {update.source}")
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
    say(f"at work      {_share_text(expected)}")
    say(f"             by the formula {percent(round(found.capacity.utilization, 2))}")
    if expected.utilization > 0.0:
        say(f"an update    every {expected.interval_s:.1f} s, {86_400 / expected.interval_s:,.0f} a day")
        say(f"staleness    {expected.staleness_mean:.1f} in the mean, 95 % within {expected.staleness_p95:.0f}")
        say(f"lost to age  {percent(expected.lost_share)} of the groups")
    say(f"bottleneck   {advice.bottleneck}: {advice.sentence}")
    for change in advice.changes:
        say(f"would help   {change.text}: {percent(round(change.utilization, 2))}")
    if activation is not None:
        chosen = zip(found.rows, activation.counts, strict=True)
        names = [f"{count} of {row.row.count} {row.row.name}" for row, count in chosen if count]
        say(f"enough       {', '.join(names)}, {percent(round(activation.share_of_cost, 2))} of the fleet's price")


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


def plan_document(
    fleet: Fleet, found: FleetCapacity, advice: Advice, expected: Forecast, activation: Activation | None
) -> dict[str, object]:
    """The document printed by `--json`."""
    capacity = found.capacity
    return {
        "run": asdict(fleet.run),
        "update": {**asdict(found.update), "total_s": found.update.total_s},
        "needed_groups_per_s": found.demand.groups_per_s,
        "patch_bytes": found.patch_bytes,
        "machines": [
            {
                "name": row.row.name,
                "count": row.row.count,
                "tokens_per_s": row.tokens_per_s,
                "groups_per_s": row.groups_per_s,
                "slots": row.machine.slots if row.machine else 0,
                "version_delay_s": row.machine.version_delay_s if row.machine else None,
                "source": row.source,
            }
            for row in found.rows
        ],
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
        "activation": None if activation is None else asdict(activation),
    }
