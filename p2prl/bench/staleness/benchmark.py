"""The staleness benchmark: runs the cases missing from its results file, and writes a table and curves beside it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from p2prl.bench.staleness.acceptance import CRITERIA_TASK, Verdict, judge, runs_needed
from p2prl.bench.staleness.banded_training import BandedTraining
from p2prl.bench.staleness.charts import plot_curves
from p2prl.bench.staleness.delayed_training import DelayedTraining
from p2prl.bench.staleness.methods import parse_method
from p2prl.bench.staleness.results import ResultFile, Setting
from p2prl.bench.staleness.staleness_distributions import parse_staleness
from p2prl.bench.staleness.summary import BASELINE, Row, as_csv, as_markdown, rows_of
from p2prl.bench.training.environments import Environment, environment_by_name
from p2prl.bench.training.training_plan import TrainingPlan
from p2prl.bench.training.warm_start import UNWRITABLE, require_first_seed, warm_start_of
from p2prl.errors import ConfigError, MachineError, require

_SEEDS_AT_ONCE = 5
"""Seeds trained side by side; with more, the old policies' weights no longer fit a core's caches."""


@dataclass(frozen=True, kw_only=True)
class StalenessConfig:
    """Methods and delay distributions to compare."""

    methods: tuple[str, ...]
    """See `methods.parse_method`."""
    delays: tuple[str, ...]
    """See `delays.parse_staleness`."""
    step_s: float | None = None
    """Seconds per update; needed by distributions in seconds, unless each gives its own."""
    seeds: int
    """Number of seeds, at least 1."""
    first_seed: int = 0
    task: str = "chain4"
    """See `environments.environment_by_name`."""
    plan: TrainingPlan = field(default_factory=TrainingPlan)
    check: bool = False
    """Also run the cases of the acceptance criteria, and judge them."""

    def __post_init__(self) -> None:
        require("seeds", self.seeds, 1 <= self.seeds <= 1000, "1 to 1000")
        require_first_seed(self.first_seed, self.seeds)
        if not self.methods or not self.delays:
            raise ConfigError("nothing to compare", remedy="Give at least one method and one delay distribution.")
        environment = environment_by_name(self.task)
        for method in self.methods:
            parse_method(method, max_completion_tokens=environment.max_new_tokens)
        self.delay_texts()

    def delay_texts(self) -> list[str]:
        """The delay distributions in full text form. ConfigError for one whose text does not parse back to it."""
        return [self._full_text(delay) for delay in self.delays]

    def _full_text(self, delay: str) -> str:
        text = parse_staleness(delay, step_s=self.step_s).text
        try:
            again = parse_staleness(text).text
        except ConfigError:
            again = ""
        if again != text:  # results are stored under this text, and each run parses it again
            raise ConfigError(
                f"{delay[:60]!r} becomes {text!r}, which loses precision",
                remedy="Use seconds, and seconds per step, of 0.0001 to 999999 with at most six digits.",
            )
        return text

    @property
    def seed_range(self) -> range:
        """The seeds."""
        return range(self.first_seed, self.first_seed + self.seeds)


@dataclass(frozen=True, kw_only=True)
class StalenessReport:
    """Rows of the table, and verdicts of the acceptance criteria."""

    rows: list[Row]
    verdicts: list[Verdict]
    """Empty unless requested."""


def run_staleness(
    config: StalenessConfig, out: Path, *, on_progress: Callable[[str, float], None] | None = None
) -> StalenessReport:
    """Run the cases missing from `out/results.jsonl` and write `staleness.csv`, `.md` and `.png` beside it.

    On-policy GRPO is always run, because every loss is relative to it. `on_progress` receives the stage and the
    fraction of all work done. After an interruption the next call continues after the last finished batch of seeds.
    """
    results = ResultFile(out / "results.jsonl")
    seeds = config.seed_range
    pairs = [BASELINE, *itertools.product(config.methods, config.delay_texts())]
    runs = dict.fromkeys((config.task, method, delay, config.plan) for method, delay in pairs)
    if config.check:
        runs |= dict.fromkeys((CRITERIA_TASK, *run) for run in runs_needed())
    batches = [
        (task, method, delay, plan, batch)
        for task, method, delay, plan in runs
        for batch in _batches(results.missing(Setting.of(task, method, delay, plan), seeds))
    ]
    work = sum(plan.updates for *_, plan, _ in batches)
    done = 0
    for task, method, delay, plan, batch in batches:
        stage = f"{method} under {delay}, seeds {batch[0]}–{batch[-1]}"

        def tell(
            share: float, prefix: str = "", stage: str = stage, before: int = done, updates: int = plan.updates
        ) -> None:
            if on_progress is not None:
                on_progress(prefix + stage, (before + share * updates) / work)

        tell(0.0)
        _run_batch(results, environment_by_name(task), method, delay, plan, batch, out, tell)
        done += plan.updates
    shown = list(dict.fromkeys(method for method, _ in pairs))
    delays = list(dict.fromkeys(delay for _, delay in pairs))
    rows = rows_of(results, config.task, shown, delays, config.plan, seeds)
    try:
        (out / "staleness.csv").write_text(as_csv(rows), encoding="utf-8")
        (out / "staleness.md").write_text(as_markdown(rows), encoding="utf-8")
        plot_curves(results, config.task, shown, delays, config.plan, seeds, out / "staleness.png")
    except OSError as error:
        raise MachineError(f"cannot write to {out}: {error.strerror}", remedy=UNWRITABLE) from error
    return StalenessReport(rows=rows, verdicts=judge(results, seeds) if config.check else [])


def _batches(seeds: Sequence[int]) -> list[list[int]]:
    return [list(seeds[start : start + _SEEDS_AT_ONCE]) for start in range(0, len(seeds), _SEEDS_AT_ONCE)]


def _run_batch(
    results: ResultFile,
    environment: Environment,
    method: str,
    delay: str,
    plan: TrainingPlan,
    seeds: list[int],
    out: Path,
    tell: Callable[..., None],
) -> None:
    parsed = parse_method(method, max_completion_tokens=environment.max_new_tokens)
    start_MW = warm_start_of(environment, seeds, out, on_step=lambda _: tell(0.0, "warm start for "))
    kind = BandedTraining if "band" in parsed.additions else DelayedTraining
    training = kind(environment, parsed, parse_staleness(delay), plan, seeds, start_MW)
    results.add(Setting.of(environment.task.name, method, delay, plan), training.run(on_progress=tell))
