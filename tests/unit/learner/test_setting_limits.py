"""Ranges of the learner's settings: what lies at an end of one passes, and what lies beyond is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from p2prl.errors import ConfigError
from p2prl.learner.evaluation.evaluation_plan import EvaluationConfig
from p2prl.learner.training.loss_guards import GuardConfig
from p2prl.learner.training.memory_config import MemoryConfig
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.probation import ProbationConfig
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.value_head import ValueHeadConfig

TINY = 1e-300
"""Above 0 by as little as it takes."""

RANGES: list[tuple[type[Any], str, tuple[float, ...], tuple[float, ...]]] = [
    (EvaluationConfig, "every", (0,), (-1,)),
    (EvaluationConfig, "prompts", (1,), (0,)),
    (EvaluationConfig, "samples", (0, 1024), (-1, 1025)),
    (EvaluationConfig, "time_share", (TINY, 1.0), (0.0, 1.001)),
    (GuardConfig, "kl_brake", (TINY,), (0.0, math.inf)),
    (GuardConfig, "second_moment", (TINY,), (0.0, math.inf)),
    (GuardConfig, "negative_tail", (0.0,), (-TINY, math.inf)),
    (GuardConfig, "ess_warning", (0.0, 1.0), (-TINY, 1.001)),
    (MemoryConfig, "micro_batch_tokens", (0,), (-1,)),
    (MemoryConfig, "limit_gb", (0.0,), (-TINY, math.inf)),
    (ProbationConfig, "probation_groups", (0,), (-1,)),
    (ProbationConfig, "cap", (0.0,), (-TINY, math.nan)),
    (ProbationConfig, "max_rise_nats", (0.0,), (-TINY, math.inf)),
    (ProbationConfig, "max_fall_nats", (0.0,), (-TINY, math.inf)),
    (ReferenceConfig, "ema_rate", (0.0, 0.999), (-TINY, 1.0)),
    (ValueHeadConfig, "weight", (TINY, 1000.0), (0.0, 1000.1)),
    (ValueHeadConfig, "clip", (TINY, 1e300), (0.0, math.inf)),
    (ValueHeadConfig, "gae_lambda", (0.0, 1.0), (-TINY, 1.001)),
    (ValueHeadConfig, "learning_rate", (TINY, 1.0), (0.0, 1.001)),
    (OptimizerConfig, "learning_rate", (TINY,), (0.0, math.inf)),
    (OptimizerConfig, "beta1", (0.0, 0.999), (-TINY, 1.0)),
    (OptimizerConfig, "beta2", (0.0, 0.999), (-TINY, 1.0)),
    (OptimizerConfig, "weight_decay", (0.0,), (-TINY, math.inf)),
    (OptimizerConfig, "warmup_updates", (0,), (-1,)),
    (OptimizerConfig, "decay_updates", (0,), (-1,)),
    (OptimizerConfig, "final_share", (0.0, 1.0), (-TINY, 1.001)),
    (OptimizerConfig, "gradient_clip", (TINY,), (0.0, math.inf)),
]


@pytest.mark.parametrize(("config", "name", "legal", "illegal"), RANGES)
def test_the_ends_of_a_range(config: Any, name: str, legal: tuple[float, ...], illegal: tuple[float, ...]) -> None:
    for value in legal:
        assert getattr(config(**{name: value}), name) == value
    for value in illegal:
        with pytest.raises(ConfigError, match=name):
            config(**{name: value})


def test_the_cap_of_newcomers_is_at_most_that_of_trusted_peers() -> None:
    ProbationConfig(cap=TINY, trusted_cap=TINY)
    with pytest.raises(ConfigError, match="cap"):
        ProbationConfig(cap=2 * TINY, trusted_cap=TINY)
    with pytest.raises(ConfigError, match="trusted_cap"):
        ProbationConfig(cap=0.0, trusted_cap=0.0)
