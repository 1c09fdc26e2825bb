"""Learning-rate schedules against those of transformers, and their ends."""

from __future__ import annotations

import pytest
import torch
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from p2prl.errors import ConfigError
from p2prl.learner.training.optimizer_config import OptimizerConfig

WARM, FALL = 5, 20


@pytest.mark.parametrize(
    ("name", "made"), [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)]
)
def test_rates_fall_as_those_of_transformers(name: str, made: object) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    (theirs,) = made(optimizer, WARM, WARM + FALL).lr_lambdas  # type: ignore[operator]
    config = OptimizerConfig(warmup_updates=WARM, schedule=name, decay_updates=FALL, final_share=0.0)  # type: ignore[arg-type]
    for step in range(WARM, WARM + FALL + 1):
        assert config.rate_share(step) == pytest.approx(theirs(step), abs=1e-12)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_rates_rise_to_the_peak_and_end_at_the_final_share(name: str) -> None:
    config = OptimizerConfig(warmup_updates=WARM, schedule=name, decay_updates=FALL, final_share=0.25)  # type: ignore[arg-type]
    shares = [config.rate_share(step) for step in range(100)]
    assert shares[:WARM] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert shares[WARM] == 1.0
    assert all(one > other for one, other in zip(shares[WARM : WARM + FALL], shares[WARM + 1 :], strict=False))
    assert set(shares[WARM + FALL :]) == {0.25}


def test_a_constant_rate_stays() -> None:
    config = OptimizerConfig(warmup_updates=0)
    assert {config.rate_share(step) for step in (0, 1, 10_000)} == {1.0}


def test_a_schedule_needs_its_length() -> None:
    with pytest.raises(ConfigError, match="decay_updates"):
        OptimizerConfig(schedule="cosine")
