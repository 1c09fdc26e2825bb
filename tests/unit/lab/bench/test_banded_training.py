"""Training with a dead band: samplers use banded weights, the learner keeps its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from p2prl_lab.bench.patch.simulated_training import bf16
from p2prl_lab.bench.staleness import delayed_training as training_module
from p2prl_lab.bench.staleness.banded_training import BandedTraining
from p2prl_lab.bench.staleness.benchmark import StalenessConfig, run_staleness
from p2prl_lab.bench.staleness.delay_laws import parse_law
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.training import drafted_sampling
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs
from p2prl_lab.bench.training.stacked_sampling import sample
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.bench.training.warm_start import warm_path, warm_start

ENVIRONMENT = environment_by_name("chain4")
PLAN = TrainingPlan(updates=4, evaluate_every=1, evaluation_prompts=8, final_prompts=8, learning_rate=2e-3)


@pytest.fixture(scope="module")
def start() -> Tensor:
    return warm_start(ENVIRONMENT, range(1), steps=40)


def banded(text: str, delay: str, start: Tensor) -> BandedTraining:
    method = parse_method(text, max_completion_tokens=ENVIRONMENT.max_new_tokens)
    return BandedTraining(ENVIRONMENT, method, parse_law(delay), PLAN, range(1), start)


def places(weights: Tensor) -> Any:
    """Positions of weights rounded to bf16 in the ordered list of all bf16 words."""
    words = bf16(weights.numpy().ravel()).astype(np.int64)
    return np.where(words < 0x8000, words, 0x7FFF - words)


@pytest.mark.parametrize("band", [0, 3])
def test_samplers_use_banded_weights_and_the_learner_its_own(
    band: int, start: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: list[Tensor] = []
    evaluated: list[Tensor] = []
    learner: list[Tensor] = []

    def watched_sample(shape: Any, weights: Tensor, prompts: Tensor, **rest: Any) -> Any:
        if rest["group_size"] == 8:
            sampled.append(weights.clone())
        elif rest.get("greedy_last"):  # once for each evaluation
            evaluated.append(weights.clone())
        return sample(shape, weights, prompts, **rest)

    def watched_logprobs(shape: Any, weights: Tensor, prompts: Tensor, completions: Tensor) -> Tensor:
        learner.append(weights.detach().clone())
        return completion_logprobs(shape, weights, prompts, completions)

    monkeypatch.setattr(drafted_sampling, "sample", watched_sample)
    monkeypatch.setattr(training_module, "completion_logprobs", watched_logprobs)
    banded(f"grpo+band={band}", "const:1", start).run()
    published = [places(learner[0])]
    for weights in learner[1:]:
        fresh = places(weights)
        published.append(np.where(np.abs(fresh - published[-1]) > band, fresh, published[-1]))
    assert len(learner) == PLAN.updates
    for update in range(PLAN.updates):
        used = sampled[update][:1]  # four samplers, all of one age
        assert np.array_equal(places(used), published[max(0, update - 1)])
        assert torch.equal(used, used.to(torch.bfloat16).float()), "nothing but bf16 leaves the learner"
    held = [np.mean(published[i] != places(learner[i])) for i in range(1, PLAN.updates)]
    assert max(held) > 0.1 if band else max(held) == 0.0
    assert torch.equal(evaluated[1], learner[1])
    assert torch.equal(evaluated[0], start)


def test_bf16_samplers_differ_from_the_learner_without_delay(start: Tensor) -> None:
    distances = [banded(f"grpo+band={band}", "const:0", start).run()[0].kl_max for band in (0, 32)]
    assert 0.0 < distances[0] < distances[1]


def test_the_benchmark_uses_the_methods_band(tmp_path: Path, start: Tensor) -> None:
    (tmp_path / "warm").mkdir()
    save_file({"weights": start[0].contiguous()}, warm_path(ENVIRONMENT, 0, tmp_path / "warm"))
    plan = TrainingPlan(updates=3, evaluate_every=1, evaluation_prompts=8, final_prompts=8)
    run_staleness(StalenessConfig(methods=("grpo+band=64",), delays=("const:0",), seeds=1, plan=plan), tmp_path)
    results = ResultFile(tmp_path / "results.jsonl")
    (plain,) = results.of(Setting.of("chain4", "grpo", "const:0", plan), [0])
    (held,) = results.of(Setting.of("chain4", "grpo+band=64", "const:0", plan), [0])
    assert plain.kl_max == pytest.approx(0.0, abs=1e-6)
    assert held.kl_max > 1e-5
