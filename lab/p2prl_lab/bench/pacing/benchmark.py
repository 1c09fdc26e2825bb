"""Orders of replay side by side: what each trains on, loses and learns, as a table and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from p2prl.errors import require
from p2prl.planning.queue_simulation import ORDERS, SimulatedGroup, staleness_quantile
from p2prl_lab.bench.pacing.queued_training import QueuedTraining, TrainedQueue
from p2prl_lab.bench.pacing.slow_swarm import SlowSwarm
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.warm_start import require_first_seed, warm_start_of


@dataclass(frozen=True, kw_only=True)
class PacingConfig:
    """What to compare."""

    swarm: SlowSwarm
    """Its order is replaced by each in turn."""
    seeds: int = 3
    first_seed: int = 0
    learning_rate: float = 5e-4
    prompts: int = 1024
    """Fresh prompts of the final evaluation."""

    def __post_init__(self) -> None:
        require("seeds", self.seeds, 1 <= self.seeds <= 1000, "1 to 1000")
        require_first_seed(self.first_seed, self.seeds)
        require("learning_rate", self.learning_rate, 0.0 < self.learning_rate < 1.0, "above 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class PacingRow:
    """One order; means over the seeds. Shares are of the groups that reached the learner and were settled."""

    order: str
    lost: float
    """Groups of a run that grew too stale."""
    trained: float
    """Share trained on."""
    trained_slow: float
    """The same of slow machines' groups."""
    trained_hard: float
    """The same of hard prompts."""
    trained_slow_hard: float
    """The same of hard prompts on slow machines."""
    staleness_p50: float
    staleness_p95: float
    seconds: float
    """Virtual seconds of the run."""
    greedy: float
    """Final greedy success on fresh prompts."""
    greedy_error: float
    """Standard error over seeds; 0 for one."""
    greedy_hard: float


def run_pacing(
    config: PacingConfig, out: Path, *, on_progress: Callable[[str, float], None] | None = None
) -> list[PacingRow]:
    """One row for each order; warm starts are kept under `out`."""
    environment = environment_by_name("chain4")
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    tell = on_progress or (lambda _what, _share: None)
    start_MW = warm_start_of(environment, seeds, out, on_step=lambda share: tell("warm start", 0.0 * share))
    rows, total = [], len(ORDERS) * len(seeds)
    for number, order in enumerate(ORDERS):
        found = []
        for index, seed in enumerate(seeds):
            done = number * len(seeds) + index

            def on_share(share: float, done: int = done, order: str = order) -> None:
                tell(order, (done + share) / total)

            training = QueuedTraining(
                environment,
                replace(config.swarm, order=order),
                seed=seed,
                learning_rate=config.learning_rate,
                start_W=start_MW[index],
            )
            found.append(training.run(prompts=config.prompts, on_progress=on_share))
        rows.append(_row(config.swarm, order, found))
    return rows


def _row(swarm: SlowSwarm, order: str, found: Sequence[TrainedQueue]) -> PacingRow:
    def share(chosen: Callable[[SimulatedGroup], bool]) -> float:
        return fmean(each.queue.share_trained(chosen) for each in found)

    ages = [each.queue.staleness() for each in found]
    greedy = [each.greedy for each in found]
    return PacingRow(
        order=order,
        lost=fmean(len(each.queue.lost) for each in found),
        trained=share(lambda _: True),
        trained_slow=share(swarm.is_slow),
        trained_hard=share(swarm.is_hard),
        trained_slow_hard=share(lambda group: swarm.is_slow(group) and swarm.is_hard(group)),
        staleness_p50=fmean(staleness_quantile(each, 0.5) for each in ages),
        staleness_p95=fmean(staleness_quantile(each, 0.95) for each in ages),
        seconds=fmean(each.queue.seconds for each in found),
        greedy=fmean(greedy),
        greedy_error=stdev(greedy) / len(greedy) ** 0.5 if len(greedy) > 1 else 0.0,
        greedy_hard=fmean(each.greedy_hard for each in found),
    )


def as_documents(rows: Sequence[PacingRow]) -> list[dict[str, object]]:
    """Rows as JSON objects."""
    return [asdict(row) for row in rows]


def as_markdown(rows: Sequence[PacingRow]) -> str:
    """Rows as a Markdown table."""
    groups = ("order", "lost", "trained on: all", "slow", "hard", "slow and hard", "staleness p50", "p95", "seconds")
    titles = (*groups, "greedy", "±", "greedy, hard")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lines.extend(
        f"| {row.order} | {row.lost:.0f} | {row.trained:.3f} | {row.trained_slow:.3f} | {row.trained_hard:.3f} "
        f"| {row.trained_slow_hard:.3f} | {row.staleness_p50:.0f} | {row.staleness_p95:.0f} | {row.seconds:.0f} "
        f"| {row.greedy:.3f} | {row.greedy_error:.3f} | {row.greedy_hard:.3f} |"
        for row in rows
    )
    return "\n".join(lines) + "\n"
