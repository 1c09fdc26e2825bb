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
        ("ready_updates", 0.5),
        ("dead_band_ulp", -1),
        ("dead_band_ulp", (1 << 23) + 1),
    ],
)
def test_impossible_settings_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        LearnerConfig(**{name: value})  # type: ignore[arg-type]
    assert caught.value.remedy
