"""Result versions: kept results are used again by code that gives the same figures, and by no other.

The pinned figures turn red when a change moves them. Then raise the result version beside the changed code, and pin the
new figures.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from p2prl_lab.bench.staleness import banded_training, delayed_training
from p2prl_lab.bench.staleness.banded_training import BandedTraining
from p2prl_lab.bench.staleness.delay_laws import parse_law
from p2prl_lab.bench.staleness.delayed_training import DelayedTraining
from p2prl_lab.bench.staleness.measures import Evaluation
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.staleness.results import ResultFile, Setting, version_of
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.training import warm_start as warm_start_module
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.bench.training.warm_start import warm_path, warm_start, warm_start_of

PLAN = TrainingPlan(updates=3, evaluate_every=1, evaluation_prompts=16, final_prompts=16)
POLICY = Evaluation(
    update=0, sampled=0.1, greedy=0.2, pass_at_8=0.3, entropy=0.4, nll=0.5, length=6.0, finished=1.0, calibration=0.1
)
DONE = SeedResult(seed=0, evaluations=(POLICY,) * 3, grad_norm_max=1, weight_max=1, ess_min=1, kl_mean=0, kl_max=0)
SEEDS = range(1)
ONE = "measures=2 training=1 warm_start=1 environment=1 loss=1"


def line(version: str) -> str:
    """A line of results kept before measures had versions."""
    return (
        '{"setting":{"task":"chain4","method":"grpo","delay":"const:8","updates":200,"learning_rate":0.0005,'
        f'"evaluate_every":20,"evaluation_prompts":256,"final_prompts":1024,{version}}},"result":{{"seed":0,'
        '"curve":[[0,0.1],[0,0.1],[0,0.1]],"grad_norm_max":1,"weight_max":1,"ess_min":1,"kl_mean":0,"kl_max":0}}\n'
    )


def missing(path: Path, method: str) -> list[int]:
    return ResultFile(path).missing(Setting.of("chain4", method, "const:8", TrainingPlan()), SEEDS)


@pytest.mark.parametrize(
    "version", ['"code":"5642068d6a95a2cc"', '"version":"training=1 warm_start=1 environment=1 loss=1"']
)
def test_results_of_other_measures_are_kept_and_not_used(tmp_path: Path, version: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(line(version))
    assert missing(path, "grpo") == [0]
    assert ResultFile(path).settings() == []
    ResultFile(path).add(Setting.of("chain4", "grpo", "const:8", TrainingPlan()), [DONE])
    assert missing(path, "grpo") == []
    assert path.read_text().startswith(line(version))


def test_results_of_later_measures_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.jsonl"
    ResultFile(path).add(Setting.of("chain4", "grpo", "const:8", TrainingPlan()), [DONE])
    assert ResultFile(path).of(Setting.of("chain4", "grpo", "const:8", TrainingPlan()), SEEDS) == [DONE]
    monkeypatch.setattr("p2prl_lab.bench.staleness.results.MEASURES_VERSION", 3)
    assert missing(path, "grpo") == [0]


def test_a_raised_version_drops_kept_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.jsonl"
    for method in ("grpo", "gex", "gex+band"):
        ResultFile(path).add(Setting.of("chain4", method, "const:8", TrainingPlan()), [DONE])
    monkeypatch.setattr(banded_training, "RESULT_VERSION", 2)
    assert [missing(path, method) for method in ("grpo", "gex", "gex+band")] == [[], [], [0]]
    monkeypatch.setattr(delayed_training, "RESULT_VERSION", 2)
    assert [missing(path, method) for method in ("grpo", "gex", "gex+band")] == [[0], [0], [0]]


def test_warm_starts_of_the_digest_format_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = environment_by_name("chain4")
    weights = torch.full((environment.shape.size(),), 0.5)
    (tmp_path / "warm").mkdir()
    save_file({"weights": weights}, tmp_path / "warm" / "chain4-7-6434ef2a65a189f6.safetensors")
    assert torch.equal(warm_start_of(environment, [7], tmp_path)[0], weights)
    assert warm_path(environment, 8, tmp_path / "warm").name == "chain4-8-v1.1.safetensors"
    monkeypatch.setattr(warm_start_module, "RESULT_VERSION", 2)
    assert not warm_path(environment, 7, tmp_path / "warm").exists()


@pytest.mark.parametrize(
    ("task", "method", "version", "figures"),  # norm of the warm start, grad_norm_max, weight_max, kl_max
    [
        ("chain4", "grpo", ONE, (25.5228, 0.703956, 1.343237, 0.00282926)),
        ("chain4", "gepo_t", ONE, (25.5228, 0.248418, 1.844585, 0.00276533)),
        ("chain4", "gex+brake", ONE, (25.5228, 0.273399, 1.354670, 0.00305697)),
        ("chain4", "asympo", ONE, (25.5228, 0.401084, 0.923205, 0.00273266)),
        ("chain4", "gepo_t+band=2", f"{ONE} band=1", (25.5228, 0.248480, 1.843734, 0.00270336)),
        ("walk12", "grpo", ONE, (26.12815, 0.0, 1.0, 0.0)),
    ],
)
def test_figures_have_not_moved_within_a_version(
    task: str, method: str, version: str, figures: tuple[float, ...]
) -> None:
    assert version_of(task, method) == version
    environment = environment_by_name(task)
    parsed = parse_method(method, max_completion_tokens=environment.max_new_tokens)
    kind = BandedTraining if "band" in parsed.additions else DelayedTraining
    start = warm_start(environment, [5], steps=20)
    (result,) = kind(environment, parsed, parse_law("lognorm:4"), PLAN, [5], start).run()
    found = dataclasses.asdict(result)
    measured = (float(start.double().norm()), *(found[name] for name in ("grad_norm_max", "weight_max", "kl_max")))
    assert measured == pytest.approx(figures, rel=2e-3, abs=1e-6)
