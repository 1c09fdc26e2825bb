"""The staleness benchmark: runs the cases missing from its results file, and writes a table and curves beside it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from p2prl.errors import ConfigError, MachineError, require
from p2prl_lab.bench.staleness.acceptance import CRITERIA_TASK, Verdict, judge, runs_needed
from p2prl_lab.bench.staleness.banded_training import BandedTraining
from p2prl_lab.bench.staleness.bases import BASELINE, ON_POLICY
from p2prl_lab.bench.staleness.charts import plot_curves
from p2prl_lab.bench.staleness.comparisons import Comparison, comparisons_of
from p2prl_lab.bench.staleness.comparisons import as_markdown as comparisons_as_markdown
from p2prl_lab.bench.staleness.delay_laws import is_steady, parse_law, steady_updates
from p2prl_lab.bench.staleness.delayed_training import DelayedTraining
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.staleness.summary import Row, as_csv, as_markdown, rows_of
from p2prl_lab.bench.staleness.sweep import DEVELOPMENT_SEEDS, Choice, SweepPlan, settle
from p2prl_lab.bench.training.environment_checks import check_environment
from p2prl_lab.bench.training.environments import Environment, environment_by_name
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.bench.training.warm_start import UNWRITABLE, require_first_seed, warm_start_of

CPU = torch.device("cpu")

Run = tuple[str, str, str, TrainingPlan]
"""Task, method, delay law and plan."""

SEEDS_AT_ONCE = 5
"""Seeds trained side by side; with more, the old policies' weights no longer fit a core's caches. Of a task with long
completions one seed at a time: its batches are large by themselves."""


@dataclass(frozen=True, kw_only=True)
class StalenessConfig:
    """Methods and delay distributions to compare; many fields because each is an option of the command."""

    methods: tuple[str, ...]
    """See `methods.parse_method`."""
    delays: tuple[str, ...]
    """See `delay_laws.parse_law`."""
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
    sweep: bool = False
    """Choose each method's learning rate and clip on `sweep.DEVELOPMENT_SEEDS`, and report on the seeds above."""
    sweep_only: bool = False
    """Choose them, and leave the reporting seeds unseen."""
    tuning_seeds: int = len(DEVELOPMENT_SEEDS)
    """Number of development seeds, from the first on, that choices are made on."""
    device: torch.device = CPU
    """The batches of every run are computed on it. Results are continued on any."""
    steady_state: bool = False
    """Accept only plans of at least five times as many updates as the longest delay of every law."""

    def __post_init__(self) -> None:
        require("seeds", self.seeds, 1 <= self.seeds <= 1000, "1 to 1000")
        most = len(DEVELOPMENT_SEEDS)
        require("tuning_seeds", self.tuning_seeds, 1 <= self.tuning_seeds <= most, f"1 to {most}")
        require_first_seed(self.first_seed, self.seeds)
        if not self.methods or not self.delays:
            raise ConfigError("nothing to compare", remedy="Give at least one method and one delay distribution.")
        environment = environment_by_name(self.task)
        if environment.origin:
            check_environment(environment)
        for method in self.methods:
            parse_method(method, max_completion_tokens=environment.max_new_tokens)
        texts = self.delay_texts()
        if self.steady_state:
            self._require_steady(texts)
        if self.sweep_only and not self.sweep:
            raise ConfigError("without a sweep there is nothing to choose", remedy="Add --sweep.")
        if self.sweep and set(self.seed_range) & set(DEVELOPMENT_SEEDS):
            raise ConfigError(
                f"seeds {self.seed_range[0]} to {self.seed_range[-1]} include development seeds",
                remedy=f"Report on seeds outside {DEVELOPMENT_SEEDS[0]} to {DEVELOPMENT_SEEDS[-1]}.",
            )

    def _require_steady(self, texts: Sequence[str]) -> None:
        for text in texts:
            law = parse_law(text)
            if not is_steady(law, self.plan.updates):
                raise ConfigError(
                    f"{self.plan.updates} updates are no steady state under {text}, whose longest delay is "
                    f"{law.longest} updates",
                    remedy=f"Set --updates {steady_updates(law, self.plan.evaluate_every)} or more.",
                )

    def delay_texts(self) -> list[str]:
        """The delay distributions in full text form. ConfigError for one whose text does not parse back to it."""
        return [self._full_text(delay) for delay in self.delays]

    def _full_text(self, delay: str) -> str:
        text = parse_law(delay, step_s=self.step_s).text
        try:
            again = parse_law(text).text
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
    choices: list[Choice] = field(default_factory=list)
    """Settings chosen by the sweep; empty without one."""
    comparisons: list[Comparison] = field(default_factory=list)
    """The first method against the others, paired by seed."""


def run_staleness(
    config: StalenessConfig, out: Path, *, on_progress: Callable[[str, float], None] | None = None
) -> StalenessReport:
    """Run the cases missing from `out/results.jsonl` and write `staleness.csv`, `.md` and `.png` beside it.

    Every method on policy, and on-policy GRPO on tasks that do not move, are always run, because losses are relative to
    them. `on_progress`
    receives the stage and the fraction of all work done. After an interruption the next call continues after the last
    finished batch of seeds. With a sweep, `out/sweep.json` records the choices before the reporting runs begin.
    """
    results, tell = ResultFile(out / "results.jsonl"), on_progress or (lambda *_: None)
    runner = _Runner(results=results, out=out, device=config.device)
    methods, delays, choices, swept = list(config.methods), config.delay_texts(), list[Choice](), 0.0
    on_policy = methods
    if config.sweep:
        sweep = SweepPlan(
            task=config.task,
            delays=tuple(delays),
            plan=config.plan,
            max_completion_tokens=environment_by_name(config.task).max_new_tokens,
            seeds=DEVELOPMENT_SEEDS[: config.tuning_seeds],
        )
        ahead = 0 if config.sweep_only else len(methods) * (len(delays) + 2) * config.seeds
        swept = (tuned := len(sweep.runs(results, methods)) * len(sweep.seeds)) / (tuned + ahead)
        _run_sweep(runner, sweep, methods, lambda stage, share: tell(f"sweep: {stage}", swept * share))
        choices = [sweep.choose(results, method) for method in methods]
        if config.sweep_only:
            return StalenessReport(rows=[], verdicts=[], choices=choices)
        settle(out / "sweep.json", sweep, choices)
        methods = [choice.chosen for choice in choices]
        on_policy = [*methods, *(choice.on_policy for choice in choices)]
    moves = environment_by_name(config.task).schedule is not None
    pairs = [
        *(() if moves else (BASELINE,)),
        *((method, ON_POLICY) for method in on_policy),
        *itertools.product(methods, delays),
    ]
    reported: list[Run] = [(config.task, method, delay, config.plan) for method, delay in pairs]
    if config.check:
        reported += [(CRITERIA_TASK, *run) for run in runs_needed()]
    seeds = config.seed_range
    runner.run_missing(reported, seeds, lambda stage, share: tell(stage, swept + (1 - swept) * share))
    shown = list(dict.fromkeys((*(() if moves else BASELINE[:1]), *on_policy, *methods)))
    laws = list(dict.fromkeys((ON_POLICY, *delays)))
    rows = rows_of(results, config.task, shown, laws, config.plan, seeds)
    compared = comparisons_of(results, config.task, methods, laws, config.plan, seeds)
    _write(results, config, rows, compared, out)
    return StalenessReport(
        rows=rows, verdicts=judge(results, seeds) if config.check else [], choices=choices, comparisons=compared
    )


def _run_sweep(runner: _Runner, sweep: SweepPlan, methods: Sequence[str], tell: Callable[[str, float], None]) -> None:
    """Run the sweep's settings, and the lower rates that their results ask for."""
    begun, runs = 0.0, list[Run]()
    while (known := sweep.runs(runner.results, methods)) != runs:
        # Nobody knows how many lower rates follow: each round takes most of what is left.
        runs, room = known, 0.8 * (1 - begun)

        def tell_round(stage: str, share: float, begun: float = begun, room: float = room) -> None:
            tell(stage, begun + room * share)

        runner.run_missing(runs, sweep.seeds, tell_round)
        begun += room
    tell("chosen", 1.0)


def _write(
    results: ResultFile, config: StalenessConfig, rows: list[Row], compared: list[Comparison], out: Path
) -> None:
    shown, delays = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("method", "delay"))
    try:
        (out / "staleness.csv").write_text(as_csv(rows), encoding="utf-8")
        text = as_markdown(rows) + "\n" + comparisons_as_markdown(compared)
        (out / "staleness.md").write_text(text, encoding="utf-8")
        plans = dict.fromkeys(delays, config.plan)
        for name, measure in (("staleness.png", "sampled"), ("staleness_greedy.png", "greedy")):
            chart = out / name
            plot_curves(results, config.task, shown, plans, config.seed_range, chart, measure=measure)
    except OSError as error:
        raise MachineError(f"cannot write to {out}: {error.strerror}", remedy=UNWRITABLE) from error


@dataclass(frozen=True, kw_only=True)
class _Runner:
    """Runs what is missing from a file of results."""

    results: ResultFile
    out: Path
    device: torch.device

    def run_missing(self, runs: Sequence[Run], seeds: Sequence[int], on_progress: Callable[[str, float], None]) -> None:
        """Train each run once on every seed without a result; a batch of seeds is kept when it is done."""
        batches = [
            (task, method, delay, plan, batch)
            for task, method, delay, plan in dict.fromkeys(runs)
            for batch in _batches(
                self.results.missing(Setting.of(task, method, delay, plan), seeds), seeds_at_once(task, self.device)
            )
        ]
        work = sum(plan.updates * len(batch) for *_, plan, batch in batches)
        done = 0
        for task, method, delay, plan, batch in batches:
            stage, size = f"{method} under {delay}, seeds {batch[0]}–{batch[-1]}", plan.updates * len(batch)

            def tell(share: float, prefix: str = "", stage: str = stage, before: int = done, size: int = size) -> None:
                # What comes before the updates has a share of its own.
                on_progress(prefix + stage, share if prefix else (before + share * size) / work)

            tell(0.0)
            run_batch(
                self.results, environment_by_name(task), method, delay, plan, batch, self.out, tell, device=self.device
            )
            done += size


def seeds_at_once(task: str, device: torch.device = CPU) -> int:
    """Seeds of a task that are trained side by side on a device."""
    return 1 if environment_by_name(task).is_long and device.type == "cpu" else SEEDS_AT_ONCE


def _batches(seeds: Sequence[int], size: int) -> list[list[int]]:
    return [list(seeds[start : start + size]) for start in range(0, len(seeds), size)]


def run_batch(
    results: ResultFile,
    environment: Environment,
    method: str,
    delay: str,
    plan: TrainingPlan,
    seeds: list[int],
    out: Path,
    tell: Callable[..., None],
    *,
    device: torch.device = CPU,
) -> None:
    """Train one batch of seeds from their warm starts under `out`, and add its results."""
    for setting, found in train_batch(environment, method, delay, (plan,), seeds, out, tell, device=device).items():
        results.add(setting, found)


def train_batch(
    environment: Environment,
    method: str,
    delay: str,
    plans: Sequence[TrainingPlan],
    seeds: Sequence[int],
    out: Path,
    tell: Callable[..., None],
    *,
    device: torch.device = CPU,
) -> dict[Setting, list[SeedResult]]:
    """Train one batch of seeds from their warm starts under `out`: results of every plan.

    `plans`: the longest first; the others are its beginnings.
    """
    parsed = parse_method(method, max_completion_tokens=environment.max_new_tokens)
    longest, *shorter = plans
    start_MW = warm_start_of(
        environment, seeds, out, device=device, on_step=lambda share: tell(share, "warm start for ")
    )
    kind = BandedTraining if "band" in parsed.additions else DelayedTraining
    training = kind(environment, parsed, parse_law(delay), longest, seeds, start_MW)
    lengths = training.run_lengths(shorter, on_progress=tell)
    return {Setting.of(environment.name, method, delay, plan): found for plan, found in lengths.items()}
