"""The engine benchmark: both sides sample what was asked, and random lengths are counted right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from p2prl.bench.engine.benchmark import EngineBenchConfig, run_engine_bench
from p2prl.bench.engine.random_lengths import LengthsBenchConfig, slots_at_work
from p2prl.errors import ConfigError
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of
from tests.devices import DEVICES


def _tiny_sampler(**options: Any) -> TransformersSampler:
    model = tiny_model("chain4").model
    return TransformersSampler(PolicyModel(model, layout_of(model, "float32")), **options)


@pytest.mark.parametrize("device", DEVICES)
def test_rows(device: str) -> None:
    config = EngineBenchConfig(
        models=("29m",),
        batches=(1,),
        vocabulary=500,
        prompt_tokens=2,
        tokens=2,
        repeats=1,
        device=torch.device(device),
        compiled=False,
    )
    told: list[str] = []
    rows = run_engine_bench(config, on_progress=lambda text, _: told.append(text))
    without_graphs = ["transformers, no graphs"] if device == "cuda" else []
    assert [row.engine for row in rows] == ["generate", "transformers", *without_graphs]
    bare, product = rows[:2]
    assert {(row.model, row.dtype, row.batch) for row in rows} == {("29m", "float32", 1)}
    assert (bare.of_bare, bare.noise_of_step) == (1.0, None)
    by_cpu = product.tokens_per_cpu_s / bare.tokens_per_cpu_s
    by_wall = product.tokens_per_s / bare.tokens_per_s
    assert product.of_bare == pytest.approx(by_cpu if device == "cpu" else by_wall)
    assert product.noise_of_step is not None
    assert 0 < product.noise_of_step < 1
    assert told == ["29m, 1 rows"]


def test_one_length_keeps_every_slot_at_work() -> None:
    """Eight equal completions at a time: a group is submitted when the one before has ended."""
    config = LengthsBenchConfig(batch=8, groups=3, mean=10.0, spread=0.0, most=20)
    work = slots_at_work(_tiny_sampler(), config, vocabulary=10, prompt_tokens=4, seed=0)
    assert (work.tokens, work.steps, work.most_in_flight) == (240, 30, 8)
    assert work.share == 1.0


def test_random_lengths_keep_most_slots_at_work() -> None:
    config = LengthsBenchConfig(batch=32, groups=10, mean=8.0, spread=0.8, most=20)
    work = slots_at_work(_tiny_sampler(), config, vocabulary=10, prompt_tokens=4, seed=0)
    assert work.most_in_flight <= 36
    assert 0.8 < work.share < 1.0
    few = slots_at_work(_tiny_sampler(most_rows=4), config, vocabulary=10, prompt_tokens=4, seed=0)
    assert few.share < 0.2, "what waits in the queue is not at work"


def test_settings_out_of_range() -> None:
    with pytest.raises(ConfigError):
        EngineBenchConfig(models=("30b",))
    with pytest.raises(ConfigError):
        EngineBenchConfig(tokens=1)
    with pytest.raises(ConfigError):
        replace(LengthsBenchConfig(), batch=9)
