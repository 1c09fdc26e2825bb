"""The warm start: its loss falls, and the same seed gives the same result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2prl.errors import ConfigError
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.small_models.warm_start import WarmstartConfig, warm_start
from p2prl.models.weights.layout import flatten, layout_of
from p2prl.tasks.chain4 import demonstration
from tests.unit.models.chain4_accuracy import accuracy

SHORT = WarmstartConfig(steps=4, batch=16, warmup_steps=1)


def _trained(seed: int) -> bytes:
    loaded = tiny_model()
    warm_start(loaded, demonstration, seed=seed, config=SHORT)
    return bytes(flatten(loaded.model, layout_of(loaded.model, "float32")))


def test_seed_fixes_the_weights() -> None:
    assert _trained(1) == _trained(1)
    assert _trained(1) != _trained(2)


def test_every_update_is_told_and_the_loss_falls() -> None:
    loaded, config = tiny_model(), replace(WarmstartConfig(), steps=60)
    steps: list[int] = []
    losses: list[float] = []

    def note(step: int, loss: float) -> None:
        steps.append(step)
        losses.append(loss)

    warm_start(loaded, demonstration, config=config, on_step=note)
    assert steps == list(range(1, config.steps + 1))
    assert losses[-1] < 0.5 * losses[0]
    assert not loaded.model.training


def test_untrained_model_is_right_by_accident_only() -> None:
    assert accuracy(tiny_model(), prompts=512) < 0.05


def test_learning_rate_schedule() -> None:
    config = WarmstartConfig(steps=100, warmup_steps=10, learning_rate=1.0)
    rates = [config.rate_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == rates[10] == 1.0
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"batch": 0}, {"learning_rate": 0.0}, {"warmup_steps": -1}])
def test_empty_recipes_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        WarmstartConfig(**bad)
