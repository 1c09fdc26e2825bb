"""The published experiment: its batches in order, tuning before reporting, resumption, and its tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.bench.staleness.experiment import (
    LAWS,
    PARTS,
    CompactResults,
    Job,
    Part,
    choice_of,
    next_job,
    remaining_seconds,
    rounded,
    settings_tried,
)
from p2prl.bench.staleness.experiment_report import report
from p2prl.bench.staleness.measures import Evaluation
from p2prl.bench.staleness.results import Setting
from p2prl.bench.staleness.seed_log import SeedResult
from p2prl.bench.staleness.sweep import DEVELOPMENT_SEEDS

SMALL = (Part(task="chain4", methods=("gepo_t:sharpness=1", "grpo"), laws=LAWS[:2], seconds=0.5),)


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
    setting = Setting.of(job.part.task, job.method, job.law, job.plan)
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
    assert jobs[: len(tuned)] == tuned
    assert len(tuned) == 10
    assert [job.method for job in tuned[:2]] == ["gepo_t:sharpness=1+lr=0.0005", "grpo+lr=0.0005"]
    reported = jobs[len(tuned) :]
    assert {job.method for job in reported} == {"gepo_t:sharpness=1+lr=0.001", "grpo+lr=0.001"}
    runs = [(job.method, job.law, job.updates, seed) for job in reported for seed in job.seeds]
    assert len(runs) == len(set(runs)) == 2 * 2 * 2 * 10
    assert {seed for *_, seed in runs} == set(range(10))


def test_a_few_methods_are_compared_on_every_task_before_the_others_run(tmp_path: Path) -> None:
    methods = ("gspo", "grpo", "topr")
    parts = [Part(task=task, methods=methods, laws=LAWS[:3], seconds=0.1) for task in ("chain4", "split4")]
    results, jobs = CompactResults(tmp_path / "runs.jsonl"), list[Job]()
    while (job := next_job(results, parts)) is not None:
        jobs.append(job)
        run(results, job, 0.5)
    few = [job for job in jobs if not job.method.startswith("gspo")]
    first = jobs[: next(index for index, job in enumerate(jobs) if job.method.startswith("gspo"))]
    assert first == few[: len(first)]
    assert {(job.part.task, job.law) for job in first} == {
        (task, law) for task in ("chain4", "split4") for law in ("const:64", "const:128", "const:0")
    }
    assert {seed for job in first for seed in job.seeds} == {*DEVELOPMENT_SEEDS, *range(5)}


def test_a_choice_waits_for_every_setting(tmp_path: Path) -> None:
    results = CompactResults(tmp_path / "runs.jsonl")
    for _ in range(9):
        job = next_job(results, SMALL)
        assert job is not None
        run(results, job, 0.5)
    assert choice_of(results, "chain4", "gepo_t:sharpness=1") == "gepo_t:sharpness=1+lr=0.0005", "of equals the first"
    assert choice_of(results, "chain4", "grpo") is None


def test_every_method_of_every_part_can_be_run() -> None:
    for part in PARTS:
        for method in part.methods:
            tried = settings_tried(part.task, method)
            assert 3 <= len(tried) == len(set(tried)) <= 5
    assert {law for part in PARTS for law, _ in part.laws} == {law for law, _ in LAWS}


def test_the_tables_say_what_is_missing(tmp_path: Path) -> None:
    results = CompactResults(tmp_path / "runs.jsonl")
    empty = report(results, SMALL)
    assert "no method has been tuned to the end" in empty
    assert "`chain4`: 0 of 50 development runs, 0 of 40 reporting runs" in empty
    while (job := next_job(results, SMALL)) is not None:
        run(results, job, 0.8 if job.law == "const:0" else 0.6)
    text = report(results, SMALL)
    assert "| chain4 | `const:128` | `grpo+lr=0.0005` | 10 | 0.600 ± 0.000 | 25.0 % ± 0.0 |" in text
    assert "50 of 50 development runs, 40 of 40 reporting runs" in text


def test_figures_are_kept_with_five_digits() -> None:
    short = rounded(result(3, 1 / 3))
    assert (short.seed, short.evaluations[0].greedy, short.evaluations[0].update) == (3, 0.33333, 0)
