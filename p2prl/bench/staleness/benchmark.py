"""The staleness benchmark as a whole: which runs are missing, running them, what is written beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from p2prl.bench.staleness.acceptance import DEMANDED_TASK, Verdict, judge, runs_needed
from p2prl.bench.staleness.banded_training import BandedTraining
from p2prl.bench.staleness.charts import plot_curves
from p2prl.bench.staleness.delay_laws import parse_delay
from p2prl.bench.staleness.methods import parse_method
from p2prl.bench.staleness.results import ResultFile, Setting
from p2prl.bench.staleness.stale_training import Training, TrainingPlan
from p2prl.bench.staleness.summary import BASELINE, Row, as_csv, as_markdown, rows_of
from p2prl.bench.training.environments import Environment, environment_by_name
from p2prl.bench.training.starting import UNWRITABLE, require_first_seed, warm_start_of
from p2prl.errors import ConfigError, MachineError, require

_SEEDS_AT_ONCE = 5
"""Seeds trained side by side: beyond, the old policies' weights fall out of a core's caches and nothing is gained."""


@dataclass(frozen=True, kw_only=True)
class StalenessConfig:
    """What is compared, and how."""

    methods: tuple[str, ...]
    """See `methods.parse_method`."""
    delays: tuple[str, ...]
    """See `delays.parse_delay`."""
    step_s: float | None = None
    """Seconds that an update takes; laws of seconds need it, unless each says so itself."""
    seeds: int
    """Number of seeds, at least 1."""
    first_seed: int = 0
    task: str = "chain4"
    """See `subjects.environment_by_name`."""
    plan: TrainingPlan = field(default_factory=TrainingPlan)
    check: bool = False
    """Also run what the demands need, and judge them."""

    def __post_init__(self) -> None:
        require("seeds", self.seeds, 1 <= self.seeds <= 1000, "1 to 1000")
        require_first_seed(self.first_seed, self.seeds)
        if not self.methods or not self.delays:
            raise ConfigError("nothing to compare", remedy="Name at least one method and one law of delay.")
        subject = environment_by_name(self.task)
        for method in self.methods:
            parse_method(method, max_completion_tokens=subject.max_new_tokens)
        self.laws()

    def laws(self) -> list[str]:
        """The laws of delay, each written in full. ConfigError where that would not name the law again."""
        return [self._law(delay) for delay in self.delays]

    def _law(self, delay: str) -> str:
        law = parse_delay(delay, step_s=self.step_s)
        try:
            again = parse_delay(law.text).text
        except ConfigError:
            again = ""
        if again != law.text:  # results are kept under this text, and each run reads its law from it
            raise ConfigError(
                f"{delay[:60]!r} comes to {law.text!r}, which cannot be written out",
                remedy="Use seconds, and seconds a step, of 0.0001 to 999999 with at most six digits.",
            )
        return law.text

    @property
    def seed_range(self) -> range:
        """The seeds."""
        return range(self.first_seed, self.first_seed + self.seeds)


@dataclass(frozen=True, kw_only=True)
class StalenessReport:
    """What came of it."""

    rows: list[Row]
    verdicts: list[Verdict]
    """Empty unless asked for."""


def run_staleness(
    config: StalenessConfig, out: Path, *, on_progress: Callable[[str, float], None] | None = None
) -> StalenessReport:
    """Run what `out/results.jsonl` lacks and write `staleness.csv`, `.md` and `.png` beside it.

    On-policy GRPO is always run, because every loss is relative to it. `on_progress` is told the stage and the share
    of all work done. Interrupted at any moment, the next call goes on after the last finished batch of seeds.
    """
    results = ResultFile(out / "results.jsonl")
    seeds = config.seed_range
    pairs = [BASELINE, *itertools.product(config.methods, config.laws())]
    runs = dict.fromkeys((config.task, method, delay, config.plan) for method, delay in pairs)
    if config.check:
        runs |= dict.fromkeys((DEMANDED_TASK, *run) for run in runs_needed())
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
    laws = list(dict.fromkeys(delay for _, delay in pairs))
    rows = rows_of(results, config.task, shown, laws, config.plan, seeds)
    try:
        (out / "staleness.csv").write_text(as_csv(rows), encoding="utf-8")
        (out / "staleness.md").write_text(as_markdown(rows), encoding="utf-8")
        plot_curves(results, config.task, shown, laws, config.plan, seeds, out / "staleness.png")
    except OSError as error:
        raise MachineError(f"cannot write to {out}: {error.strerror}", remedy=UNWRITABLE) from error
    return StalenessReport(rows=rows, verdicts=judge(results, seeds) if config.check else [])


def _batches(seeds: Sequence[int]) -> list[list[int]]:
    return [list(seeds[start : start + _SEEDS_AT_ONCE]) for start in range(0, len(seeds), _SEEDS_AT_ONCE)]


def _run_batch(
    results: ResultFile,
    subject: Environment,
    method: str,
    delay: str,
    plan: TrainingPlan,
    seeds: list[int],
    out: Path,
    tell: Callable[..., None],
) -> None:
    parsed = parse_method(method, max_completion_tokens=subject.max_new_tokens)
    start_MW = warm_start_of(subject, seeds, out, on_step=lambda _: tell(0.0, "warm start for "))
    kind = BandedTraining if "band" in parsed.additions else Training
    training = kind(subject, parsed, parse_delay(delay), plan, seeds, start_MW)
    results.add(Setting.of(subject.task.name, method, delay, plan), training.run(on_progress=tell))
