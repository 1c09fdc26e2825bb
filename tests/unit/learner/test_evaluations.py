"""Evaluation in a run: versions are measured once, by their own weights, beside training and never trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from p2prl.errors import MachineError
from p2prl.learner.evaluation.evaluation_plan import EvaluationConfig
from p2prl.learner.service import Learner
from p2prl.models.evaluation.pass_evaluation import evaluate_prompts, evaluation_sets
from p2prl.tasks.evaluation_report import task_report
from tests.unit.learner import scripted_swarm
from tests.unit.learner.scripted_swarm import (
    ScriptedSwarm,
    ThreadedSwarm,
    fresh_runs,
    make_learner,
    metrics_lines,
    run_through,
)
from tests.unit.learner.small_run import SmallRun

EVALUATE = EvaluationConfig(every=2, prompts=12, samples=3)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], SmallRun]]:
    with fresh_runs(tmp_path) as make:
        yield make


def results(small_run: SmallRun) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (small_run.directory / "evaluations.jsonl").read_text().splitlines()]


def measuring(small_run: SmallRun, **changes: Any) -> Learner:
    return make_learner(small_run, **({"evaluate": EVALUATE} | changes))


def test_a_result_is_that_of_its_version(fresh: Callable[[str], SmallRun]) -> None:
    run, told = fresh("run"), list[str]()
    run_through(run, None, build=partial(measuring, on_notice=told.append))
    measured = results(run)
    assert [result["version"] for result in measured] == [0, 2, 4]
    assert [result["step"] for result in measured] == [0, 2, 4]
    assert sum("greedy" in line and "fresh prompts" in line for line in told) == len(measured)
    (only,) = evaluation_sets(run.work, run.manifest, run.run, prompts=12, samples=3)
    assert len(only.prompts) == len({prompt.assignment.prompt for prompt in only.prompts}) == 12
    for result in measured:
        run.scorer.load_weights(run.published.weights(result["version"]).open())
        outcomes = evaluate_prompts(run.sampler, run.work, only.prompts)
        report, expected = result["tasks"]["chain4"], task_report(outcomes, split="fresh", pass_above=0.5)
        # Slices are other batches, whose log-probs differ in the last bits.
        assert report.pop("entropy_per_token") == pytest.approx(expected.pop("entropy_per_token"), abs=1e-6)
        assert report == expected


@pytest.mark.parametrize("frees_memory", [False, True])
def test_training_is_the_same_with_and_without(
    fresh: Callable[[str], SmallRun], frees_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the model's memory is given back after each slice, as on a graphics card."""
    made = scripted_swarm.evaluation_tools
    tools = lambda *arguments: replace(made(*arguments), frees_memory=frees_memory)  # noqa: E731
    monkeypatch.setattr(scripted_swarm, "evaluation_tools", tools)
    bare, run = fresh("bare"), fresh("measured")
    plain, _, _ = run_through(bare, None)
    measured, _, _ = run_through(run, None, build=measuring)
    assert measured == plain

    def trained(line: dict[str, Any]) -> dict[str, Any]:
        timed = ("evaluation/", "training/", "seconds", "time")
        return {key: value for key, value in line.items() if not key.startswith(timed)}

    assert [trained(line) for line in metrics_lines(run)] == [trained(line) for line in metrics_lines(bare)]


def test_the_newest_result_is_in_the_metrics(fresh: Callable[[str], SmallRun]) -> None:
    run = fresh("run")
    run_through(run, None, build=measuring)
    newest = {result["version"]: result["tasks"]["chain4"] for result in results(run)}
    lines = [line for line in metrics_lines(run) if "evaluation/version" in line]
    assert lines
    for line in lines:
        report = newest[int(line["evaluation/version"])]
        assert line["evaluation/step"] < line["step"]
        assert line["evaluation/chain4/greedy_pass"] == report["greedy_pass"]["rate"]
        assert line["evaluation/chain4/pass_at_k"] == report["pass_at"]["3"]["rate"]


def test_the_status_of_the_end_has_the_newest_version_and_result(fresh: Callable[[str], SmallRun]) -> None:
    run = fresh("run")
    _, swarm, _ = run_through(run, None, build=measuring)
    status, (*_, last) = swarm.learner.status(), results(run)
    assert status["version"] == swarm.learner.version > metrics_lines(run)[-1]["version"]
    assert status["evaluation/version"] == last["version"]
    assert status["evaluation/chain4/greedy_pass"] == last["tasks"]["chain4"]["greedy_pass"]["rate"]


@pytest.mark.parametrize("kill", [1, 4, 9])
def test_a_killed_learner_repeats_no_version(fresh: Callable[[str], SmallRun], kill: int) -> None:
    run = fresh("run")
    weights, _, _ = run_through(run, kill, build=measuring)
    versions = [result["version"] for result in results(run)]
    assert versions == sorted(set(versions))
    assert versions[0] == 0
    plain, _, _ = run_through(fresh("plain"), None)
    assert weights == plain


def test_off_is_off(fresh: Callable[[str], SmallRun]) -> None:
    run = fresh("run")
    run_through(run, None, build=partial(measuring, evaluate=EvaluationConfig(every=0)))
    assert not (run.directory / "evaluations.jsonl").exists()


def test_a_machine_that_cannot_sample_goes_on_training(
    fresh: Callable[[str], SmallRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MachineError("memory ran out")

    monkeypatch.setattr("p2prl.learner.evaluation.evaluations.evaluate_prompts", fail)
    run, told = fresh("run"), list[str]()
    run_through(run, None, build=partial(measuring, on_notice=told.append))
    (line,) = [line for line in told if "evaluation is off" in line]
    assert "memory ran out" in line
    assert len(metrics_lines(run)) == 5
    assert not (run.directory / "evaluations.jsonl").exists()


def test_a_stop_gives_the_slice_up(fresh: Callable[[str], SmallRun]) -> None:
    run = fresh("run")
    swarm = ScriptedSwarm(run, partial(measuring, run))
    swarm.learner.stop()
    for _ in range(4):
        swarm.turn()
    swarm.learner.close()
    assert not (run.directory / "evaluations.jsonl").exists()


def test_in_threads_it_ends_too(fresh: Callable[[str], SmallRun]) -> None:
    run = fresh("run")
    swarm = ThreadedSwarm(run, evaluate=EVALUATE)
    swarm.finish()
    while swarm.learner._checks.evaluate(idle=True, finished=True):
        swarm.learner._checks.finish(step=swarm.learner.step, wait=True)
    swarm.learner.close()
    versions = [result["version"] for result in results(run)]
    assert versions[0] == 0
    assert versions[-1] == 5
