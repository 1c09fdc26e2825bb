"""On-policy comparison of recipes and rewards: runs the cases missing from its results file, writes tables and curves.

Serves `p2prl bench rewards` and `p2prl bench ppo`, which compare and show different figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from p2prl.algorithms.reward_spec import parse_reward
from p2prl.errors import ConfigError, MachineError, require
from p2prl_lab.bench.comparison import on_policy_training
from p2prl_lab.bench.comparison.on_policy_training import OnPolicyTraining, RecipeResult
from p2prl_lab.bench.comparison.recipes import parse_recipe
from p2prl_lab.bench.comparison.report import CaseRow, as_csv, as_markdown, plot_cases, row_of
from p2prl_lab.bench.results.result_version import result_version
from p2prl_lab.bench.results.seed_file import Line, SeedFile
from p2prl_lab.bench.training import warm_start
from p2prl_lab.bench.training.environments import Environment, environment_by_name
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.bench.training.warm_start import UNWRITABLE, require_first_seed, warm_start_of

_SEEDS_AT_ONCE = 5
"""Seeds per batch, as in the staleness benchmark; more gain nothing."""


def plan_of(updates: int, learning_rate: float) -> TrainingPlan:
    """Training plan with frequent evaluations, because a policy exploits a faulty reward within 50 batches."""
    return TrainingPlan(
        updates=updates, learning_rate=learning_rate, evaluate_every=10, evaluation_prompts=128, final_prompts=512
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table."""

    recipe: str
    """See `recipes.parse_recipe`."""
    reward: str = "success"
    """See `reward_spec.parse_reward`."""


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig:
    """Cases to compare."""

    cases: tuple[Case, ...]
    seeds: int
    """Number of seeds, at least 1."""
    first_seed: int = 0
    task: str = "chain4"
    """See `environments.environment_by_name`."""
    max_new_tokens: int | None = None
    """Completion limit, tokens; None is the task's own."""
    plan: TrainingPlan = field(default_factory=lambda: plan_of(80, 5e-4))

    def __post_init__(self) -> None:
        require("seeds", self.seeds, 1 <= self.seeds <= 1000, "1 to 1000")
        require_first_seed(self.first_seed, self.seeds)
        if not self.cases:
            raise ConfigError("nothing to compare", remedy="Give at least one.")
        environment = self.environment()
        for case in self.cases:
            parse_recipe(case.recipe, max_completion_tokens=environment.max_new_tokens)
            parse_reward(case.reward)

    @property
    def seed_range(self) -> range:
        """The seeds."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def environment(self) -> Environment:
        """The environment with this completion limit. ConfigError when prompt and completion exceed the context."""
        environment = environment_by_name(self.task)
        room = environment.shape.context - len(environment.prompt_tokens(environment.task.prompt(0)))
        limit = environment.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        require("max_new_tokens", limit, 1 <= limit <= room, f"1 to {room} for {self.task}")
        return replace(environment, max_new_tokens=limit)


class CaseSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a run except its seed."""

    task: str
    recipe: str
    reward: str
    max_new_tokens: int
    updates: int
    learning_rate: float
    evaluate_every: int
    evaluation_prompts: int
    final_prompts: int
    version: str = "training=1 warm_start=1 environment=1 loss=1"
    """Version of the code that affects the figures. Lines without one were written by version 1 of all parts."""


def setting_of(config: ComparisonConfig, case: Case) -> CaseSetting:
    """Setting of one case."""
    plan, environment = config.plan, config.environment()
    return CaseSetting(
        task=config.task,
        recipe=case.recipe,
        reward=case.reward,
        max_new_tokens=environment.max_new_tokens,
        updates=plan.updates,
        learning_rate=plan.learning_rate,
        evaluate_every=plan.evaluate_every,
        evaluation_prompts=plan.evaluation_prompts,
        final_prompts=plan.final_prompts,
        version=_version_of(environment, case),
    )


def _version_of(environment: Environment, case: Case) -> str:
    recipe = parse_recipe(case.recipe, max_completion_tokens=environment.max_new_tokens)
    return result_version(
        training=on_policy_training.RESULT_VERSION,
        warm_start=warm_start.RESULT_VERSION,
        environment=environment.result_version,
        loss=recipe.objective.spec.result_version,
    )


CaseFile = SeedFile[CaseSetting, RecipeResult]


def open_results(out: Path) -> CaseFile:
    """Open the results stored in a folder."""
    return SeedFile(out / "results.jsonl", Line[CaseSetting, RecipeResult])


def run_comparison(
    config: ComparisonConfig,
    out: Path,
    *,
    name: str,
    shown: tuple[str, ...],
    on_progress: Callable[[str, float], None] | None = None,
) -> list[CaseRow]:
    """Run the cases missing from `out/results.jsonl` and write `name`.csv, .md and .png beside it, one row per case.

    `shown` are the fields of `Evaluation` whose curves are drawn. `on_progress` receives the stage and the fraction of
    all work done. After an interruption the next call continues after the last finished batch of seeds.
    """
    results = open_results(out)
    batches = [
        (case, missing[start : start + _SEEDS_AT_ONCE])
        for case in dict.fromkeys(config.cases)
        for missing in [results.missing(setting_of(config, case), config.seed_range)]
        for start in range(0, len(missing), _SEEDS_AT_ONCE)
    ]
    for done, (case, seeds) in enumerate(batches):

        def tell(what: str, share: float, before: int = done) -> None:
            if on_progress is not None:
                on_progress(what, (before + share) / len(batches))

        _run_batch(config, case, seeds, results, out, tell)
    rows = []
    curves = {}
    for case in dict.fromkeys(config.cases):
        found = results.of(setting_of(config, case), config.seed_range)
        rows.append(row_of(case.recipe, case.reward, found))
        curves[case.recipe if len({case.reward for case in config.cases}) == 1 else _label(config, case)] = found
    try:
        (out / f"{name}.csv").write_text(as_csv(rows), encoding="utf-8")
        (out / f"{name}.md").write_text(as_markdown(rows), encoding="utf-8")
        plot_cases(curves, shown, out / f"{name}.png")
    except OSError as error:
        raise MachineError(f"cannot write to {out}: {error.strerror}", remedy=UNWRITABLE) from error
    return rows


def _label(config: ComparisonConfig, case: Case) -> str:
    return case.reward if len({case.recipe for case in config.cases}) == 1 else f"{case.recipe}, {case.reward}"


def _run_batch(
    config: ComparisonConfig,
    case: Case,
    seeds: list[int],
    results: CaseFile,
    out: Path,
    tell: Callable[[str, float], None],
) -> None:
    environment = config.environment()
    stage = f"{case.recipe} on {case.reward}, seeds {seeds[0]}–{seeds[-1]}"
    tell(stage, 0.0)
    start_MW = warm_start_of(environment, seeds, out, on_step=lambda _: tell(f"warm start for {stage}", 0.0))
    training = OnPolicyTraining(
        environment,
        parse_recipe(case.recipe, max_completion_tokens=environment.max_new_tokens),
        parse_reward(case.reward),
        config.plan,
        seeds,
        start_MW,
    )
    results.add(setting_of(config, case), training.run(on_progress=lambda share: tell(stage, share)))
