"""Validators benchmark: its configuration is checked, and its rows say what each kind of validator was paid."""

from __future__ import annotations

from typing import Any

import pytest

from p2prl.errors import ConfigError
from p2prl_lab.bench.trust.validators import ValidatorBenchConfig, run_validator_bench


@pytest.mark.parametrize("wrong", [{"volunteers": 0}, {"updates": 0}, {"kinds": ()}, {"kinds": ("honest", "kind")}])
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ValidatorBenchConfig(**wrong)


def test_honest_validators_are_paid_in_full_and_lazy_ones_nothing() -> None:
    config = ValidatorBenchConfig(volunteers=2, updates=1, kinds=("honest", "lazy", "honest"))
    shares: list[float] = []
    rows = run_validator_bench(config, on_progress=lambda _, share: shares.append(share))
    assert [row.validator for row in rows] == ["honest", "lazy", "honest"]
    first, lazy, second = rows
    assert (lazy.in_ledger, lazy.paid_tokens) == (0, 0)
    assert lazy.verdicts > 10
    for row in (first, second):
        assert 0.8 * row.credited_tokens <= row.paid_tokens <= row.credited_tokens
    assert shares[-1] == 1.0
