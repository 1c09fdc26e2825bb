"""The published experiment: its batches in order, tuning before reporting, resumption, and its tables."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from p2prl_lab.bench.staleness import experiment_report
from p2prl_lab.bench.staleness.delay_laws import is_steady, parse_law
from p2prl_lab.bench.staleness.experiment import (
    EVALUATIONS,
    GRPO,
    LAWS,
    LEARNING_RATE,
    OWN,
    PARTS,
    REPORTED,
    RIVALS,
    SOFT_OAPL,
    CompactResults,
    Job,
    Part,
    choice_of,
    next_job,
    plan_of,
    remaining_seconds,
    rounded,
    tuning_jobs,
    tuning_of,
)
from p2prl_lab.bench.staleness.experiment_report import draw, report
from p2prl_lab.bench.staleness.measures import Evaluation
from p2prl_lab.bench.staleness.results import Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.staleness.sweep import DEVELOPMENT_SEEDS, LEAST_RATE

DEFAULT = "topr:sharpness=1+amsgrad"
SMALL = (Part(task="chain4", methods=(DEFAULT, "grpo+amsgrad"), laws=LAWS[:2], seconds=0.5),)


def result(seed: int, greedy: float) -> SeedResult:
    evaluations = tuple(
        Evaluation(
            update=update, sampled=greedy / 3, greedy=greedy, pass_at_8=1.0, entropy=0.5, nll=0.5, length=5.0,
            finished=1.0, calibration=0.0, grad_norm=1.0,
        )
        for update in (0, 20, 40, 60)
    )  # fmt: skip
    return SeedResult(
        seed=seed, evaluations=evaluations, grad_norm_max=1.0, weight_max=1.0, ess_min=1.0, kl_mean=0.0, kl_max=0.0
    )


def run(results: CompactResults, job: Job, greedy: float) -> None:
    for plan in (job.plan, *job.shorter):
        setting = Setting.of(job.part.task, job.method, job.law, plan)
        results.add(setting, [result(seed, greedy) for seed in job.seeds])


def test_tuned_first_then_reported_and_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    results, jobs, left = CompactResults(path), list[Job](), list[float]()
    while (job := next_job(results, SMALL)) is not None:
        assert len(jobs) < 60, "it does not end"
        left.append(remaining_seconds(results, SMALL))
        jobs.append(job)
        run(results, job, 0.9 if "lr=0.001" in job.method else 0.6)
        results = CompactResults(path)  # a restart after every batch
    assert remaining_seconds(results, SMALL) == 0.0
    assert left == sorted(left, reverse=True)
    spent = [job.seconds for job in jobs]
    assert left[0] == pytest.approx(sum(spent))
    tuned = [job for job in jobs if set(job.seeds) == set(DEVELOPMENT_SEEDS)]
    assert jobs[:4] == tuned[:4] == [job for job in tuned if job.method.startswith("topr")], "no clips of the default"
    assert len(tuned) == 4 + 6
    clips = [job.method for job in tuned if "clip" in job.method]
    assert len(clips) == 2
    assert all(method.endswith("+lr=0.001") for method in clips), "clips are tried at the best rate"
    reported = [job for job in jobs if job not in tuned]
    for name in ("topr", "grpo"):
        own = [job in tuned for job in jobs if job.method.startswith(name)]
        assert own == sorted(own, reverse=True), "tuned before reported"
    assert {job.method for job in reported} == {f"{DEFAULT}+lr=0.001", "grpo+amsgrad+lr=0.001"}
    lengths = [(job, updates) for job in reported for updates in (job.updates, *job.also)]
    runs = [(job.method, job.law, updates, seed) for job, updates in lengths for seed in job.seeds]
    assert len(runs) == len(set(runs)) == 2 * 2 * 2 * 10 + 2 * 10
    on_policy = [job for job in reported if job.law == "const:0"]
    offline = [job for job in reported if job.law == "start"]
    assert {job.method for job in offline} == {f"{DEFAULT}+lr=0.001"}, "the default alone"
    assert {(job.updates, job.also) for job in (*on_policy, *offline)} == {(1280, (640,))}, "one run gives both lengths"
    assert {seed for *_, seed in runs} == set(range(10))


def test_what_says_most_comes_first_on_every_task(tmp_path: Path) -> None:
    """The default against itself on policy, then GRPO beside it, then what else is compared."""
    methods = ("gspo", "grpo+amsgrad", DEFAULT, "asympo+amsgrad")
    laws = (LAWS[0], LAWS[1], LAWS[3])
    parts = [Part(task=task, methods=methods, laws=laws, halves=1, seconds=0.1) for task in ("chain4", "split4")]
    results, order = CompactResults(tmp_path / "runs.jsonl"), list[tuple[str, str, str]]()
    while (job := next_job(results, parts)) is not None:
        run(results, job, 0.5)
        order.append((job.method.partition(":")[0].partition("+")[0], job.law, job.part.task))
    assert {(task, law, updates) for _, task, law, updates in settings_of(results)} == {
        (task, law, updates)
        for task in ("chain4", "split4")
        for law, updates in (("const:64", 320), *laws, *(("const:0", updates) for _, updates in laws))
    } | {(task, "start", updates) for task in ("chain4", "split4") for _, updates in laws}
    for task in ("chain4", "split4"):
        begun = [
            order.index((method, law, task))
            for method, law in (
                ("topr", "const:64"), ("topr", "const:128"), ("topr", "const:256"), ("topr", "const:512"),
                ("grpo", "const:128"), ("grpo", "const:256"), ("grpo", "const:512"), ("asympo", "const:128"),
                ("asympo", "const:512"),
                ("gspo", "const:128"), ("gspo", "const:512"),
            )
        ]  # fmt: skip
        assert begun == sorted(begun)
    tasks = [task for method, law, task in order if (method, law) == ("topr", "const:128")]
    assert tasks[:2] == ["chain4", "split4"]
    assert order.index(("topr", "const:128", "split4")) < order.index(("topr", "const:256", "chain4"))


def settings_of(results: CompactResults) -> set[tuple[str, str, str, int]]:
    return {(each.method, each.task, each.delay, each.updates) for each in results.settings()}


def test_a_choice_waits_for_every_setting(tmp_path: Path) -> None:
    results = CompactResults(tmp_path / "runs.jsonl")
    while choice_of(results, "chain4", DEFAULT) is None or not clips_of_grpo(results):
        run(results, next(tuning_jobs(results, SMALL)), 0.5)
    assert choice_of(results, "chain4", DEFAULT) == f"{DEFAULT}+lr=0.0005", "of equals the first"
    first, second = tuning_jobs(results, SMALL)
    for job in (first, second):
        assert choice_of(results, "chain4", "grpo+amsgrad") is None
        run(results, job, 0.5)
    assert choice_of(results, "chain4", "grpo+amsgrad") == "grpo+amsgrad+lr=0.0005"


def clips_of_grpo(results: CompactResults) -> list[str]:
    return [setting for setting in tuning_of(results, "chain4", "grpo+amsgrad").tried if "clip" in setting]


def test_rates_go_down_as_far_as_that_helps(tmp_path: Path) -> None:
    part = Part(task="chain4", methods=("grpo+amsgrad",), laws=LAWS[:1], seconds=0.5)
    greedy = {"0.0005": 0.6, "0.00025": 0.7, "0.000125": 0.8, "6.25e-05": 0.85, "3.125e-05": 0.82, "0.001": 0.1}
    results, tried = CompactResults(tmp_path / "runs.jsonl"), list[str]()
    while (job := next(tuning_jobs(results, [part]), None)) is not None:
        tried.append(job.method)
        clipped = 0.04 * ("clip_low=0.4" in job.method)
        run(results, job, greedy[job.method.rpartition("=")[2]] + clipped)
    rates = [method.rpartition("=")[2] for method in tried if "clip" not in method]
    assert rates == ["0.0005", "0.00025", "0.000125", "0.001", "6.25e-05", "3.125e-05"]
    assert [method for method in tried if "clip" in method] == [
        f"grpo:clip_low={low}:clip_high={high}+amsgrad+lr=6.25e-05" for low, high in (("0.4", "0.4"), ("0.8", "4"))
    ]
    assert choice_of(results, "chain4", "grpo+amsgrad") == "grpo:clip_low=0.4:clip_high=0.4+amsgrad+lr=6.25e-05"


def test_a_rate_costs_what_the_best_one_gains_over_it(tmp_path: Path) -> None:
    """Of the method with its own clip: a wider one that is better changes nothing. A task of one method is left out."""
    methods = (DEFAULT, "grpo+amsgrad")
    parts = [Part(task=task, methods=methods, laws=LAWS[:1], seconds=0.1) for task in ("chain4", "split4")]
    parts.append(Part(task="strict8", methods=(DEFAULT,), laws=LAWS[:1], seconds=0.1))
    greedy = {
        "chain4": {"0.000125": 0.5, "0.00025": 0.8, "0.0005": 0.7, "0.001": 0.1},
        "split4": {"0.000125": 0.7, "0.00025": 0.6, "0.0005": 0.3, "0.001": 0.2, "6.25e-05": 0.6},
        "strict8": dict.fromkeys(("0.000125", "0.00025", "0.0005", "0.001", "6.25e-05"), 0.5),
    }
    results = CompactResults(tmp_path / "runs.jsonl")
    while (job := next(tuning_jobs(results, parts), None)) is not None:
        setting = Setting.of(job.part.task, job.method, job.law, job.plan)
        own = greedy[job.part.task][job.method.rpartition("=")[2]] + 0.1 * ("clip" in job.method)
        # At the middle rate of chain4 the seeds differ, from -.02 to .02.
        swing = 0.01 * (setting.method == f"{DEFAULT}+lr=0.0005" and job.part.task == "chain4")
        results.add(setting, [result(seed, own + swing * (seed - 102)) for seed in job.seeds])
    error = 100 * (0.00025 / 5) ** 0.5 / 2  # variance of -.02, -.01, 0, .01, .02 over four; half of it over two tasks
    costs = "15.0 ± 0.0 | 5.0 ± 0.0 | 25.0 ± {} | 60.0 ± 0.0 |"
    assert experiment_report.rate_lines(results, parts)[2:] == [
        f"| `{DEFAULT}` | 2 | {costs.format(f'{error:.1f}')}",
        f"| `grpo+amsgrad` | 2 | {costs.format('0.0')}",
    ]
    assert experiment_report.rate_lines(results, [parts[-1]]) == [], "one task is no mean"
    assert "## What a learning rate costs" in report(results, parts)


def test_rates_end_where_nothing_would_be_learned(tmp_path: Path) -> None:
    part = Part(task="chain4", methods=(DEFAULT,), laws=LAWS[:1], seconds=0.5)
    results, rates = CompactResults(tmp_path / "runs.jsonl"), list[float]()
    while (job := next(tuning_jobs(results, [part]), None)) is not None:
        rates.append(float(job.method.rpartition("=")[2]))
        run(results, job, 1 - rates[-1])
    assert LEAST_RATE <= min(rates) / LEARNING_RATE < 2 * LEAST_RATE
    assert choice_of(results, "chain4", DEFAULT) == f"{DEFAULT}+lr={min(rates):g}"


def test_every_method_of_every_part_can_be_run(tmp_path: Path) -> None:
    results = CompactResults(tmp_path / "runs.jsonl")
    for part in PARTS:
        for method in part.methods:
            tuning = tuning_of(results, part.task, method)
            assert len(tuning.tried) == len(set(tuning.tried)) == 4
            assert tuning.to_come in ((0,) if method in OWN else (0, 2)), "no rival is tuned less than the default"
            assert method == SOFT_OAPL or method not in (GRPO, *RIVALS) or tuning.to_come == 2
    assert {law for part in PARTS for law, _ in part.laws} == {law for law, _ in LAWS}


def test_the_tables_say_what_is_missing(tmp_path: Path) -> None:
    results = CompactResults(tmp_path / "runs.jsonl")
    empty = report(results, SMALL)
    assert "no method has been tuned to the end" in empty
    assert "`chain4`: 0 of 50 development runs, 0 of 40 reporting runs" in empty
    while (job := next_job(results, SMALL)) is not None:
        run(results, job, 0.8 if job.law == "const:0" else 0.6)
    text = report(results, SMALL)
    assert "| chain4 | `const:128` | `grpo+amsgrad+lr=0.0005` | 10 | 0.600 ± 0.000 | 25.0 % ± 0.0 |" in text
    assert "50 of 50 development runs, 40 of 40 reporting runs" in text


def test_methods_are_compared_seed_by_seed_and_over_tasks(tmp_path: Path) -> None:
    results = CompactResults(tmp_path / "runs.jsonl")
    methods = (DEFAULT, "grpo+amsgrad")
    parts = [Part(task=task, methods=methods, laws=LAWS[:1], halves=1, seconds=0.1) for task in ("chain4", "split4")]
    # The default is better by .1, .2, .3, .4 and .5 on the seeds of chain4, and worse by .02 on each of split4.
    gains = {("chain4", seed): 0.02 * (seed - 4) * 5 for seed in range(5, 10)}
    while (job := next_job(results, parts)) is not None:
        plan = {each.updates: each for each in (job.plan, *job.shorter)}
        for each in plan.values():
            setting = Setting.of(job.part.task, job.method, job.law, each)
            ours = job.method.startswith("topr")
            results.add(
                setting, [result(seed, 0.4 + ours * gains.get((job.part.task, seed), -0.02)) for seed in job.seeds]
            )
    lines = experiment_report.compared_lines(results, parts)
    assert lines[0] == "| law | method | `chain4` | `split4` | tasks | mean | verdict | pass@8, mean | sampled, mean |"
    # Standard deviation of .1 … .5 is √.025, its error a √5th; over two tasks, one of them without error, half of it.
    error = (0.025 / 5) ** 0.5
    expected = f"30.0 ± {100 * error:.1f} | -2.0 ± 0.0 | 2 | 14.0 ± {100 * error / 2:.1f} | worse | 0.0 ± 0.0 | "
    assert lines[2].startswith(f"| `const:128` | `grpo+amsgrad` | {expected}")
    assert len(lines) == 3
    assert experiment_report.overview_lines(results, parts)[2] == (
        f"| `const:128` | **14.0 ± {100 * error / 2:.1f}** (2) |"
    )


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [((0.02, 0.01), "level"), ((0.0201, 0.01), "worse"), ((-0.02, 0.01), "level"), ((-0.0201, 0.01), "better")],
)
def test_a_verdict_takes_two_standard_errors(gain: tuple[float, float], verdict: str) -> None:
    assert experiment_report.verdict_of(gain) == verdict


def test_what_is_reported_spans_more_than_a_delay(tmp_path: Path) -> None:
    """The default forgets in one wave as long as the delay: a window of three evaluations would miss it."""
    assert all((REPORTED - 1) * updates // EVALUATIONS > parse_law(law).longest for law, updates in LAWS)
    assert all(is_steady(parse_law(law), updates) for law, updates in LAWS)
    results = CompactResults(tmp_path / "runs.jsonl")
    part = Part(task="chain4", methods=(DEFAULT,), laws=LAWS[:1], halves=1, seconds=0.1)
    while (job := next_job(results, [part])) is not None:
        run(results, job, 0.5)
    setting = next(each for each in results.settings() if each.delay == "const:128")
    whole = result(5, 1.0)
    curve = [dataclasses.replace(whole.evaluations[0], greedy=value) for value in (0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]
    results.add(setting, [dataclasses.replace(whole, seed=seed, evaluations=tuple(curve)) for seed in range(5, 10)])
    (row,) = experiment_report.reporting_rows(results, [part])
    assert "| 5 | 0.400 ± 0.000 | 20.0 % ± 0.0 |" in row


def test_the_default_is_shown_beside_itself_on_old_rollouts_alone(tmp_path: Path) -> None:
    results = CompactResults(tmp_path / "runs.jsonl")
    assert experiment_report.offline_lines(results, SMALL) == []
    while (job := next_job(results, SMALL)) is not None:
        run(results, job, 0.6 if job.law == "start" else 0.8)
    assert experiment_report.offline_lines(results, SMALL)[2:] == [
        "| `chain4` | 640 | 10 | 0.600 ± 0.000 | 25.0 % ± 0.0 |",
        "| `chain4` | 1,280 | 10 | 0.600 ± 0.000 | 25.0 % ± 0.0 |",
    ]


def test_where_every_rate_collapses_lower_ones_are_tried(tmp_path: Path) -> None:
    part = Part(task="chain4", methods=("grpo+amsgrad",), laws=LAWS[:1], seconds=0.5)
    results = CompactResults(tmp_path / "runs.jsonl")
    while (job := next(tuning_jobs(results, [part]), None)) is not None:
        rate = float(job.method.rpartition("=")[2])
        ruined = dataclasses.replace(result(0, rate).evaluations[0], length=1e300)
        whole = [result(seed, rate) for seed in job.seeds]
        if rate > 4e-5:
            whole = [dataclasses.replace(each, evaluations=(*each.evaluations, ruined)) for each in whole]
        results.add(Setting.of("chain4", job.method, job.law, job.plan), whole)
    assert choice_of(results, "chain4", "grpo+amsgrad") == "grpo+amsgrad+lr=3.125e-05"


def test_the_curves_are_of_reporting_seeds_as_soon_as_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[object, ...]] = []
    monkeypatch.setattr(experiment_report, "plot_curves", lambda _, *what: drawn.append(what))
    results, path = CompactResults(tmp_path / "runs.jsonl"), tmp_path / "curves.png"
    assert not draw(results, path, SMALL)
    while (job := next(tuning_jobs(results, SMALL), None)) is not None:
        run(results, job, 0.5)
    assert draw(results, path, SMALL)
    defaults = [f"{DEFAULT}+lr=0.0005", "grpo+amsgrad+lr=0.0005"]
    assert drawn.pop() == ("chain4", defaults, {"const:64": plan_of("chain4", 320)}, DEVELOPMENT_SEEDS, path)
    on_policy = next_job(results, SMALL)
    assert on_policy is not None
    assert on_policy.law == "const:0"
    run(results, on_policy, 0.5)
    draw(results, path, SMALL)
    assert drawn.pop()[2] == {"const:64": plan_of("chain4", 320)}, "a run on policy alone shows no law"
    for law in ("start", "const:128"):
        delayed = next_job(results, SMALL)
        assert delayed is not None
        assert delayed.law == law
        run(results, delayed, 0.5)
    draw(results, path, SMALL)
    plans = {"const:128": plan_of("chain4", 640)}
    assert drawn == [("chain4", defaults, plans, list(range(10)), path)]


def test_figures_are_kept_with_five_digits() -> None:
    short = rounded(result(3, 1 / 3))
    assert (short.seed, short.evaluations[0].greedy, short.evaluations[0].update) == (3, 0.33333, 0)
