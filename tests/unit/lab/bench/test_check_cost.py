"""The measurement of what the learner's checks cost."""

from __future__ import annotations

import pytest

from p2prl.bench import random_models
from p2prl.errors import ConfigError
from p2prl_lab.bench.trust import learner_checks
from p2prl_lab.bench.trust.check_cost import measure_check_cost
from p2prl_lab.bench.trust.learner_checks import CACHED_SIGNATURES, CheckCostConfig

_TINY = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}


def test_shares_are_of_the_step_and_everything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (random_models, learner_checks):
        monkeypatch.setattr(module, "SHAPES", {"tiny": _TINY})
    monkeypatch.setattr(learner_checks, "CACHED_SIGNATURES", 63)
    config = CheckCostConfig(model="tiny", groups=1, completions=2, tokens=4, envelopes=64, repeats=1)
    told: list[float] = []
    cost = measure_check_cost(config, on_progress=lambda _, share: told.append(share))
    assert told == sorted(told)
    assert cost.parameters > 8 * 151_936
    assert 0.0 < cost.forward_s < cost.replay_s
    checks_s = cost.arrival_s + cost.replay_s - cost.forward_s
    assert cost.checks_of_step == pytest.approx(checks_s / cost.step_s)
    assert cost.full_replay_of_step == pytest.approx(cost.checks_of_step + (cost.forward_s + cost.load_s) / cost.step_s)
    assert cost.arrival_s * cost.signatures_per_s == pytest.approx(2.0)  # one group, checked twice


def test_envelopes_that_a_cache_would_hold_and_other_sizes_are_refused() -> None:
    for change in (
        {"envelopes": CACHED_SIGNATURES},
        {"groups": 0},
        {"completions": 1},
        {"model": "7b"},
        {"repeats": 0},
    ):
        with pytest.raises(ConfigError):
            CheckCostConfig(**change)
