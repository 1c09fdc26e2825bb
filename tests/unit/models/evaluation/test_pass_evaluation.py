"""Prompts of an evaluation: held-out rows and fresh prompts, never those trained on, and reports of what came out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.errors import ConfigError
from p2prl.models.evaluation.pass_evaluation import evaluate_prompts, evaluation_sets
from p2prl.models.sampling import GREEDY_TEMPERATURE
from p2prl.tasks.evaluation_report import (
    CompletionOutcome,
    PromptOutcome,
    metric_keys,
    pass_threshold,
    report_text,
    task_report,
)
from tests.unit.learner.small_run import SmallRun
from tests.unit.models.data_run import HELD_OUT, DataRun


@pytest.fixture
def run(tmp_path: Path) -> Iterator[DataRun]:
    world = SmallRun(tmp_path)
    yield DataRun(world, share=0.25)
    world.close()


def test_each_task_gets_its_own_kind_of_prompts(run: DataRun) -> None:
    fresh, held = evaluation_sets(run.learner, run.manifest, run.world.run, prompts=9, samples=2)
    assert (fresh.task, fresh.split, len(fresh.prompts)) == ("chain4", "fresh", 9)
    assert (held.task, held.split, len(held.prompts)) == ("sums", "held-out", len(HELD_OUT))
    rows = {run.codec.encode(row["prompt"]) for row in HELD_OUT}
    assert {prompt.assignment.prompt_ids for prompt in held.prompts} == rows
    for prompt in (*fresh.prompts, *held.prompts):
        greedy, *samples = prompt.requests
        assert greedy.temperature == GREEDY_TEMPERATURE
        assert [request.temperature for request in samples] == [run.manifest.sampling.temperature] * 2
        assert {request.prompt_ids for request in prompt.requests} == {prompt.assignment.prompt_ids}
    seeds = [request.seed for each in (fresh, held) for prompt in each.prompts for request in prompt.requests]
    assert len(set(seeds)) == len(seeds)


def test_the_same_prompts_every_time_and_the_first_of_more(run: DataRun) -> None:
    def prompts(count: int, *, seed: int = 0) -> list[tuple[int, ...]]:
        sets = evaluation_sets(run.learner, run.manifest, run.world.run, prompts=count, samples=0, seed=seed)
        return [prompt.assignment.prompt_ids for prompt in sets[0].prompts]

    assert prompts(6) == prompts(6) == prompts(9)[:6]
    assert prompts(6) != prompts(6, seed=1)
    assert len(set(prompts(9))) == 9


def test_splits_are_chosen(run: DataRun) -> None:
    for split, task in (("held-out", "sums"), ("fresh", "chain4")):
        (only,) = evaluation_sets(
            run.learner, run.manifest, run.world.run, prompts=2, samples=0,
            splits=(split,),  # type: ignore[arg-type]
        )  # fmt: skip
        assert (only.task, only.split, len(only.prompts)) == (task, split, 2)
    nothing = evaluation_sets(run.volunteer, run.manifest, run.world.run, prompts=2, samples=0, splits=("held-out",))
    assert nothing == (), "rows trained on are never evaluated on"


def test_held_out_rows_are_scored_as_rows(run: DataRun) -> None:
    _, held = evaluation_sets(run.learner, run.manifest, run.world.run, prompts=4, samples=1)
    run.world.scorer.load_weights(bytes(_weights(run)))
    outcomes = evaluate_prompts(run.world.sampler, run.learner, held.prompts)
    assert len(outcomes) == 4
    assert sorted(row["prompt"] for _, row, _ in run.scorer.calls) == sorted(row["prompt"] for row in HELD_OUT)
    assert {account for _, _, account in run.scorer.calls} == {b""}
    assert all(outcome.greedy.logprob_sum == 0.0 and outcome.samples[0].logprob_sum < 0.0 for outcome in outcomes)


def _weights(run: DataRun) -> memoryview:
    return run.world.published.weights(run.world.publish(0, step=0).manifest.version).open()


def test_impossible_numbers_are_refused(run: DataRun) -> None:
    for prompts, samples in ((0, 1), (1, -1), (1, 1025)):
        with pytest.raises(ConfigError):
            evaluation_sets(run.learner, run.manifest, run.world.run, prompts=prompts, samples=samples)


@pytest.mark.parametrize(
    ("scoring", "threshold"),
    [
        (None, 0.5),
        ('{"rewards":[{"scorer":"number","weight":1.0}]}', 0.5),
        ('{"rewards":[{"scorer":"number","weight":1.0},{"scorer":"format","weight":0.1}]}', 0.55),
        ('{"rewards":[{"scorer":"number","weight":2.0},{"scorer":"format","weight":-1.0}]}', 1.0),
    ],
)
def test_a_completion_passes_above_half_of_what_can_be_earned(scoring: str | None, threshold: float) -> None:
    assert pass_threshold(scoring) == pytest.approx(threshold)


def completion(score: float, *, tokens: int = 2, finished: bool = True, logprob: float = -1.0) -> CompletionOutcome:
    return CompletionOutcome(score=score, tokens=tokens, finished=finished, logprob_sum=logprob)


def test_report_by_hand() -> None:
    outcomes = [
        PromptOutcome(completion(1.0), (completion(1.0), completion(0.5, finished=False))),
        PromptOutcome(completion(0.5), (completion(0.0, tokens=6), completion(0.0))),
    ]
    report = task_report(outcomes, split="fresh", pass_above=0.5)
    assert (report["prompts"], report["samples"], report["greedy_pass"]["rate"]) == (2, 2, 0.5)
    assert {k: rate["rate"] for k, rate in report["pass_at"].items()} == {"1": 0.25, "2": 0.5}
    assert (report["greedy_score"], report["score_mean"]) == (0.75, 0.375)
    assert report["score_error"] == pytest.approx(0.375)  # of .75 and 0
    assert report["entropy_per_token"] == pytest.approx(4 / 12)
    assert report["completion_tokens_mean"] == pytest.approx(16 / 6)
    assert report["truncated_share"] == pytest.approx(1 / 6)
    keys = metric_keys(report)
    assert (keys["greedy_pass"], keys["pass_at_1"], keys["pass_at_k"]) == (0.5, 0.25, 0.5)
    assert "pass@1 0.250, pass@2 0.500, 17% cut off; 2 fresh prompts" in report_text(report)
