"""`p2prl sim`: a whole swarm on virtual time."""

from __future__ import annotations

import gc
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.options import AsJson, Seed, takes_records
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.cli.views.quantities import downloads_line
from p2prl.errors import ConfigError, MachineError
from p2prl.plain_text import counted
from p2prl.quantity_text import size_text
from p2prl.tasks.task_registry import task_by_name
from p2prl.tasks.task_spec import Demonstration, TurnsDemonstration

if TYPE_CHECKING:
    from p2prl.sim.swarm_config import SwarmConfig, SwarmResult


@dataclass(frozen=True, kw_only=True)
class SimOptions:
    """What is simulated."""

    task: Annotated[
        str, typer.Option("--task", help="chain4, walk12, guess, or an installed one with a small model.")
    ] = "chain4"
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="small: the task's small model, trained. none: nodes alone, which move random weights and groups "
            "without content; for thousands of volunteers.",
        ),
    ] = "small"
    volunteers: Annotated[int, typer.Option("--volunteers", min=1, help="Volunteers in the swarm.")] = 8
    updates: Annotated[int, typer.Option("--updates", min=1, help="Learner updates.")] = 60
    delay: Annotated[
        str,
        typer.Option(
            "--delay",
            help="Delay distribution of the groups, seconds: const:5, uniform:FROM:TO, exp:MEAN, "
            "lognormal:LOWER:UPPER or weibull:MAX. Laws of bench staleness are in updates, not in seconds.",
        ),
    ] = "const:0"
    step_seconds: Annotated[float, typer.Option("--step-seconds", min=0.001, help="Virtual seconds of one update.")] = (
        20.0
    )
    partition: Annotated[
        str | None,
        typer.Option("--partition", help="FROM:TO, virtual seconds in which half the swarm is cut off. Default: none."),
    ] = None
    loss_rate: Annotated[float, typer.Option("--loss", min=0.0, max=0.9, help="Share of frames lost.")] = 0.0
    crashes: Annotated[int, typer.Option("--crashes", min=0, help="Volunteers that crash and restart.")] = 0
    seed: Seed = 0

    def config(self) -> SwarmConfig:
        """The simulator's settings. `ConfigError` for a partition that is none."""
        from p2prl.sim.link_conditions import parse_delay
        from p2prl.sim.swarm_config import SwarmConfig

        parse_delay(self.delay)
        return SwarmConfig(
            task=self.task,
            volunteers=self.volunteers,
            updates=self.updates,
            delay=self.delay,
            step_seconds=self.step_seconds,
            partition=None if self.partition is None else _window(self.partition),
            loss=self.loss_rate,
            crashes=self.crashes,
            seed=self.seed,
        )


@takes_records
def sim(options: SimOptions, as_json: AsJson = False) -> None:
    """Simulate a swarm in one process on virtual time.

    The same seed gives the same trace.
    """
    began = time.monotonic()
    if options.model not in ("small", "none"):
        raise ConfigError(f"{options.model[:60]!r} is no model of a simulation", remedy="Use small or none.")
    config = options.config()
    result = _bare(config, quiet=as_json) if options.model == "none" else _trained(config, quiet=as_json)
    document = simulation_document(config, result, wall_s=time.monotonic() - began)
    if as_json:
        emit(document)
        return
    _show(result)


def _bare(config: SwarmConfig, *, quiet: bool) -> SwarmResult:
    """The simulation of nodes without roles."""
    from p2prl.sim.bare_swarm import BareSwarm

    with progress_bar("simulation", quiet=quiet) as on_progress:
        return BareSwarm(config).run(on_progress=lambda share: on_progress("virtual time", share))


def _trained(config: SwarmConfig, *, quiet: bool) -> SwarmResult:
    """The simulation with the real roles and a small model."""
    with progress_bar("sim", quiet=quiet) as on_progress:
        on_progress("importing torch", 0.0)

        from p2prl.models.hardware.device_choice import use_threads
        from p2prl.models.small_models.tiny_models import tiny_model
        from p2prl.models.small_models.warm_start import WarmstartConfig, warm_start
        from p2prl.sim.swarm import Swarm
    demonstration = _demonstration(config.task)
    use_threads(1)  # a fixed order of summation keeps the trace reproducible
    loaded = tiny_model(config.task, seed=config.seed)
    recipe = WarmstartConfig()
    with (
        progress_bar("simulation", quiet=quiet) as on_progress,
        tempfile.TemporaryDirectory(prefix="p2prl-sim-") as folder,
    ):
        warm_start(
            loaded,
            demonstration,
            seed=config.seed,
            config=recipe,
            on_step=lambda step, _: on_progress("warm start on flawed demonstrations", step / recipe.steps),
        )
        swarm = Swarm(config, loaded, Path(folder))
        gc.freeze()  # rescanning these long-lived objects took a sixth of the time
        result = swarm.run(on_progress=lambda share: on_progress("virtual time", share))
    if result.updates < config.updates:
        raise MachineError(
            f"the swarm made {result.updates} of {config.updates} updates in {result.virtual_s / 3600:.0f} virtual "
            "hours",
            remedy="Use more volunteers, a shorter delay or a longer --step-seconds.",
        )
    return result


def _show(result: SwarmResult) -> None:
    minutes = result.virtual_s / 60
    if result.reward_before is not None and result.reward_after is not None:
        p50, p95, largest = result.staleness
        say(f"reward     {result.reward_before:.3f} -> {result.reward_after:.3f}")
        say(f"updates    {result.updates:,} in {minutes:.0f} virtual minutes")
        say(f"staleness  p50 {p50:.0f}  p95 {p95:.0f}  max {counted(largest, 'update')}")
    else:
        say(f"updates    {result.updates:,} in {minutes:.0f} virtual minutes")
    say(f"messages   {result.messages:,}, {size_text(result.bytes)}; {result.links:.0f} links a volunteer")
    if result.reward_after is not None:
        say(downloads_line(result.patch_bytes, result.whole_bytes, result.brought_bytes))
        say(f"groups     {result.groups_verified:,} verified, {result.groups_rejected:,} rejected")
    say(f"lost       {counted(result.groups_lost, 'group')}")
    if result.t95_s is not None:
        say(f"spread     a version is at 95 % of the volunteers after {result.t95_s:.1f} virtual seconds")
    costs = result.costs
    say(
        f"cost       {costs.cpu_s_per_volunteer_hour:.3g} processor seconds for an hour of a volunteer, "
        f"{costs.join_cpu_s:.3g} to join them; {size_text(costs.peak_bytes)} of memory"
    )
    say(f"trace      {result.trace_hash}")


def _demonstration(task: str) -> Demonstration | TurnsDemonstration:
    """What the task's small model starts from: without it, a short run would show nothing."""
    demonstration = task_by_name(task).demonstration
    if demonstration is None:
        raise ConfigError(f"task {task!r} has no demonstrations", remedy="Choose a task that has some, such as chain4.")
    return demonstration


def _window(text: str) -> tuple[float, float]:
    """Parse a partition's begin and end, written FROM:TO."""
    begin, _, end = text.partition(":")
    try:
        window = float(begin), float(end)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not FROM:TO", remedy="Write seconds, as in --partition 300:900.") from error
    if not 0 <= window[0] < window[1]:
        raise ConfigError(f"{text!r} does not end after it begins", remedy="Write it as --partition 300:900.")
    return window


def simulation_document(config: SwarmConfig, result: SwarmResult, *, wall_s: float) -> dict[str, object]:
    """The document printed by `--json`."""
    p50, p95, largest = result.staleness
    return {
        "trace_hash": result.trace_hash,
        "reward_before": result.reward_before,
        "reward_after": result.reward_after,
        "updates": result.updates,
        "virtual_s": result.virtual_s,
        "messages": result.messages,
        "bytes": result.bytes,
        "staleness_p50": p50,
        "staleness_p95": p95,
        "staleness_max": largest,
        "groups_verified": result.groups_verified,
        "groups_rejected": result.groups_rejected,
        "patch_bytes": result.patch_bytes,
        "whole_bytes": result.whole_bytes,
        "brought_bytes": result.brought_bytes,
        "caught_up_s": result.caught_up_s,
        "links": result.links,
        "groups_lost": result.groups_lost,
        "t95_s": result.t95_s,
        "source_copies": result.source_copies,
        "join_cpu_s": result.costs.join_cpu_s,
        "cpu_s_per_volunteer_hour": result.costs.cpu_s_per_volunteer_hour,
        "peak_bytes": result.costs.peak_bytes,
        "volunteers": config.volunteers,
        "delay": config.delay,
        "seed": config.seed,
        "task": config.task,
        "wall_s": wall_s,
    }
