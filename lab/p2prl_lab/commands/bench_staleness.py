"""`p2prl bench staleness`: losses compared on stale rollouts."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.benchmark import Benchmark, listed, print_table, verdict_line
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.errors import P2PRLError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2prl_lab.bench.staleness.benchmark import StalenessConfig, StalenessReport
    from p2prl_lab.bench.staleness.sweep import Choice

_Methods = Annotated[
    str,
    typer.Option(
        "--methods",
        help="Losses to compare, each `loss[:option=value…]`, and `+addition[=value]` after it; `default`, what a "
        "run does (`+amsgrad` gives its optimizer to any loss); or the sets `rivals` and `ablations`.",
    ),
]
_Delays = Annotated[
    str,
    typer.Option(
        "--delays",
        help="Laws of delay in updates, not in seconds as --delay of p2prl sim: const:K, lognorm:M, weibull:M, exp:M, "
        "unif:M; in seconds: lognorm:L:Us, weibull:L:Us, const:Ks; by peer: peers:LAW/LAW; in bursts: burst:K; a "
        "version every K updates: stage:K, and one period late: block:K; within groups: within:LAW; offline: start.",
    ),
]
_TaskFile = Annotated[
    str | None,
    typer.Option(
        "--task-file",
        metavar="FILE[:NAME]",
        help="A Python file of your own that defines a TaskSpec, instead of --task. It is imported. Default: none.",
    ),
]
_Sweep = Annotated[
    bool,
    typer.Option(
        "--sweep",
        help="Choose each method's learning rate and clip or cap on seeds 100 to 104; report on the seeds given.",
    ),
]
_SweepOnly = Annotated[
    bool,
    typer.Option("--sweep-only", help="With --sweep: choose and stop; no reporting seed is run."),
]
_TuningSeeds = Annotated[
    int,
    typer.Option("--tuning-seeds", min=1, max=5, help="With --sweep: choose on this number of the seeds 100 to 104."),
]
_SteadyState = Annotated[
    bool,
    typer.Option("--steady-state", help="Refuse fewer updates than five times the longest delay of a law."),
]
_Rate = Annotated[
    float | None,
    typer.Option("--lr", help="AdamW's learning rate. Default: 0.0005, and 0.000125 with --steady-state."),
]
_Updates = Annotated[
    int | None,
    typer.Option(
        "--updates",
        min=12,
        help="Updates per run, a multiple of those between evaluations. Default: 200; of a task that moves, six "
        "periods.",
    ),
]
_Task = Annotated[
    str,
    typer.Option(
        "--task",
        help="chain4, walk12, strict8, split4 or march512; arrive8, flip8, rows8 or arrive40, which change while they "
        "are learned: NAME:PERIOD in updates; NAME@WIDTHxLAYERS for another size.",
    ),
]
_StepS = Annotated[
    float | None,
    typer.Option("--step-s", help="Seconds an update takes, for distributions in seconds. Default: none."),
]
_Out = Annotated[Path, typer.Option("--out", help="Folder for the results; a rerun resumes where it stopped.")]
_Check = Annotated[bool, typer.Option("--check", help="Also run and check the acceptance criteria.")]
_Every = Annotated[
    int | None,
    typer.Option(
        "--evaluate-every",
        min=1,
        help="Updates between evaluations. Default: 20; of a task that moves at most 16.",
    ),
]
_Size = Annotated[
    int, typer.Option("--group-size", min=4, max=256, help="Completions of a prompt in an update: 8, 16, 64.")
]
_Prompts = Annotated[
    int,
    typer.Option("--prompts", min=0, help="Prompts of an update; 0: as many as give the task's usual completions."),
]
_Device = Annotated[
    str, typer.Option("--device", help="cpu, cuda or mps. A card is worth it from a million weights on.")
]
_Seeds = Annotated[
    int | None,
    typer.Option("--seeds", min=1, help="Seeds per method and law. Default: 5, and 10 with --sweep."),
]


def bench_staleness(
    methods: _Methods = "default, grpo+amsgrad, grpo, gepo+amsgrad",
    delays: _Delays = "const:0, lognorm:64, weibull:256, const:64, const:128",
    seeds: _Seeds = None,
    updates: _Updates = None,
    evaluate_every: _Every = None,
    group_size: _Size = 8,
    prompts: _Prompts = 0,
    learning_rate: _Rate = None,
    task: _Task = "chain4",
    task_file: _TaskFile = None,
    step_s: _StepS = None,
    out: _Out = Path("runs/bench-staleness"),
    check: _Check = False,
    sweep: _Sweep = False,
    sweep_only: _SweepOnly = False,
    tuning_seeds: _TuningSeeds = 5,
    steady_state: _SteadyState = False,
    device: _Device = "cpu",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare losses under delay on a small model: table, curves and JSON."""
    from p2prl.models.hardware.device_choice import choose_device, use_threads
    from p2prl_lab.bench.staleness.benchmark import StalenessConfig, run_staleness
    from p2prl_lab.bench.staleness.method_sets import expanded
    from p2prl_lab.bench.staleness.sweep import REPORTING_SEEDS
    from p2prl_lab.bench.training.environments import environment_by_name
    from p2prl_lab.bench.training.task_file import offer_task_file
    from p2prl_lab.bench.training.training_plan import LEARNING_RATE, STEADY_LEARNING_RATE, TrainingPlan

    began = time.monotonic()
    name = task if task_file is None else offer_task_file(task_file)
    environment = environment_by_name(name)
    usual, final = environment.evaluated_prompts
    usual_rate = STEADY_LEARNING_RATE if steady_state else LEARNING_RATE
    config = StalenessConfig(
        methods=expanded(listed(methods)),
        delays=listed(delays),
        seeds=seeds or (REPORTING_SEEDS if sweep else 5),
        first_seed=seed,
        task=name,
        step_s=step_s,
        plan=TrainingPlan(
            updates=updates or environment.updates,
            learning_rate=usual_rate if learning_rate is None else learning_rate,
            evaluate_every=evaluate_every or environment.evaluate_every,
            evaluation_prompts=usual,
            final_prompts=final,
            group_size=group_size,
            prompts=prompts,
        ),
        device=choose_device(device),
        check=check,
        sweep=sweep,
        sweep_only=sweep_only,
        tuning_seeds=tuning_seeds,
        steady_state=steady_state,
    )
    use_threads(1)  # matrix products this small are slower on more threads
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        report = run_staleness(config, out, on_progress=on_progress)
    if as_json:
        emit(_document(config, report, wall_s=time.monotonic() - began))
    else:
        _print(report, out)
    _require_met(report)


def _require_met(report: StalenessReport) -> None:
    failed = sum(verdict.met is not True for verdict in report.verdicts)
    if failed:
        raise P2PRLError(
            f"{failed} of {len(report.verdicts)} criteria are not met or not measured",
            remedy="Criteria need 5 seeds or more: see docs/benchmarks/staleness_200.md.",
        )


def _print(report: StalenessReport, out: Path) -> None:
    from p2prl_lab.bench.staleness.comparisons import as_markdown as comparisons_as_markdown
    from p2prl_lab.bench.staleness.summary import as_markdown

    if report.rows:
        print_table(as_markdown(report.rows))
    if report.comparisons:
        print_table(comparisons_as_markdown(report.comparisons))
    for verdict in report.verdicts:
        say(verdict_line(verdict.criterion.text, verdict.criterion.bound, verdict.measured, verdict.met))
    for choice in report.choices:
        say(f"{choice.method}: {choice.chosen} under delay, {choice.on_policy} on policy, of {len(choice.tried)}")
    if not report.rows:
        say(f"the runs of the sweep are in {out}/results.jsonl; no reporting seed was run")
        return
    say(f"written to {out}: results.jsonl, staleness.csv, staleness.md, staleness.png, staleness_greedy.png")


def _document(config: StalenessConfig, report: StalenessReport, *, wall_s: float) -> dict[str, object]:
    from p2prl_lab.bench.staleness.summary import as_documents

    return {
        "task": config.task,
        "updates": config.plan.updates,
        "learning_rate": config.plan.learning_rate,
        "seeds": list(config.seed_range),
        "results": as_documents(report.rows),
        "comparisons": [asdict(comparison) for comparison in report.comparisons],
        "sweep": _sweep_document(config, report.choices) if config.sweep else None,
        "demands": [
            {
                "demand": verdict.criterion.text,
                "figure": verdict.criterion.figure,
                "bound": verdict.criterion.bound,
                "at_least": verdict.criterion.at_least,
                "measured": verdict.measured,
                "met": verdict.met,
            }
            for verdict in report.verdicts
        ],
        "wall_s": wall_s,
    }


def _sweep_document(config: StalenessConfig, choices: Sequence[Choice]) -> dict[str, object]:
    import msgspec

    from p2prl_lab.bench.staleness.sweep import DEVELOPMENT_SEEDS

    seeds = list(DEVELOPMENT_SEEDS[: config.tuning_seeds])
    return {"development_seeds": seeds, "choices": msgspec.to_builtins(choices)}


BENCHMARK = Benchmark(
    bench_staleness,
    examples=(
        "p2prl bench staleness --methods grpo,gepo_t --delays const:64 --seeds 1",
        "p2prl bench staleness --methods grpo,gepo_t --delays const:64 --updates 320 --steady-state --sweep",
        "p2prl bench staleness --methods grpo,gepo_t --delays burst:8 --task-file my_task.py",
        "p2prl bench staleness --methods ablations,rivals --delays const:64 --updates 320 --steady-state --sweep",
    ),
)
