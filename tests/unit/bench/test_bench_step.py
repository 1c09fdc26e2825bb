"""The step benchmark on a model of a few thousand parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from p2prl.bench import random_models
from p2prl.bench.step.benchmark import StepBenchConfig, measure_loss
from p2prl.bench.step.cards import CARDS_GB, SIZES, cards_table
from p2prl.bench.step.peak_memory import held_bytes, peak_bytes_beyond
from p2prl.errors import ConfigError
from p2prl.learner.training.memory_config import MemoryConfig

CPU = torch.device("cpu")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model in place of 29m."""
    shape = {"hidden_size": 20, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 5}
    monkeypatch.setattr(random_models, "SHAPES", {"29m": {**shape, "num_key_value_heads": 5}})
    monkeypatch.setattr(random_models.random_model, "__kwdefaults__", {"vocabulary": 500, "dtype": "float32"})


@pytest.mark.parametrize("loss", ["gepo_t", "dpo"])
def test_a_loss_is_compared_with_the_plain_step(loss: str, tiny: None) -> None:
    row = measure_loss(StepBenchConfig(groups=2, completions=3, tokens=8, repeats=1), loss)
    assert (row.loss, row.batch, row.micro_batch_tokens) == (loss, "2 x 3 x 8", 12)
    assert row.gradient_error_max is not None
    assert 0.0 < row.gradient_error_max < 1e-5
    assert row.time_of_plain == pytest.approx(row.seconds / (row.plain_seconds or 0.0))
    assert row.parameters == 500 * 20 + (20 * 20 * 4 + 3 * 20) + 3 * 20 * 32 + 3 * 20


def test_without_a_plain_step_its_figures_are_missing(tiny: None) -> None:
    config = StepBenchConfig(tokens=4, plain=False, memory=MemoryConfig(micro_batch_tokens=7, checkpointing="on"))
    row = measure_loss(config, "gspo")
    assert (row.micro_batch_tokens, row.checkpointing) == (7, True)
    assert (row.plain_seconds, row.time_of_plain, row.gradient_error_max) == (None, None, None)
    assert row.seconds > 0


def test_a_peak_is_seen_although_it_is_gone_afterwards() -> None:
    size = 200_000_000

    def work() -> None:
        torch.ones(size, dtype=torch.uint8).max()

    seen = peak_bytes_beyond(work, held=held_bytes(CPU), device=CPU)
    assert 0.9 * size < seen < 1.5 * size


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"model": "1t"}, "1t"),
        ({"tokens": 0}, "tokens"),
        ({"completions": 1}, "completions"),
        ({"losses": ("x",)}, "x"),
    ],
)
def test_settings_that_cannot_be_are_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        StepBenchConfig(**wrong)


def test_larger_cards_take_larger_micro_batches() -> None:
    lines = cards_table().splitlines()
    assert len(lines) == 2 + 5 * len(SIZES)
    for line in lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")][4:]
        assert len(cells) == len(CARDS_GB)
        fits = [cell != "–" for cell in cells]
        assert fits == sorted(fits)
        least = float(line.split("|")[4])
        assert fits == [least <= 0.9 * size for size in CARDS_GB]
