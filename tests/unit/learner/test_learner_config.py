"""Learner settings: impossible values are refused by name."""

from __future__ import annotations

import pytest

from p2prl.errors import ConfigError
from p2prl.learner.learner_config import LearnerConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("groups_per_update", 0),
        ("checkpoint_every", 0),
        ("chunk_pieces", 0),
        ("updates", -1),
        ("ready_updates", 0.99),
        ("ready_updates", 1000.1),
        ("pace_limit", -0.1),
        ("pace_limit", 4.1),
        ("dynamic_sampling", -0.1),
        ("dynamic_sampling", 100.1),
        ("replay_budget", -0.1),
        ("replay_budget", 4.1),
        ("dead_band_ulp", -1),
        ("dead_band_ulp", (1 << 23) + 1),
    ],
)
def test_impossible_settings_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        LearnerConfig(**{name: value})  # type: ignore[arg-type]
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 1) for name in ("groups_per_update", "checkpoint_every", "chunk_pieces")),
        ("updates", 0),
        ("ready_updates", 1.0),
        ("ready_updates", 1000.0),
        ("dead_band_ulp", 1 << 23),
        ("dynamic_sampling", 100.0),
        *((name, limit) for name in ("pace_limit", "replay_budget") for limit in (0.0, 4.0)),
    ],
)
def test_settings_at_the_limits_pass(name: str, value: float) -> None:
    assert getattr(LearnerConfig(**{name: value}), name) == value  # type: ignore[arg-type]
