"""`p2prl bench machine`: figures that follow from a measured speed, and which models fit."""

from __future__ import annotations

import pytest
import torch

from p2prl.bench.machine.benchmark import MachineBenchConfig, fit_rows, run_machine_bench, speed_row
from p2prl.cli.commands.bench_machine import fit_sentence, speed_line
from p2prl.errors import ConfigError


def test_credit_is_that_of_the_leaderboard() -> None:
    row = speed_row("x", 10**9, 100.0)
    assert row.credit_per_day == pytest.approx(100.0 * 86_400 * 2 * 10**9 / 10**15)
    assert speed_line(row) == "| x | 1,000,000,000 | 100 | 8.6 M | 17.3 PFLOP |"


def test_fit_counts_weights_and_work() -> None:
    rows = fit_rows(1_300_000_000, "bfloat16", sizes=(0.5e9, 0.51e9))
    assert [row.fits for row in rows] == [True, False]
    assert rows[0].needs_bytes == 1_300_000_000
    assert [row.fits for row in fit_rows(1_300_000_000, "float32", sizes=(0.25e9, 0.5e9))] == [True, False]
    assert fit_sentence(rows).startswith("Models of up to 0.5 billion")
    assert "do not fit" in fit_sentence(fit_rows(10, "float32"))


def test_a_small_model_is_measured() -> None:
    config = MachineBenchConfig(models=("29m",), device=torch.device("cpu"), batch=1, tokens=2, vocabulary=64)
    (row,) = run_machine_bench(config)
    assert row.tokens_per_s > 0
    assert 4_000_000 < row.parameters < 8_000_000, "without the vocabulary's embeddings"


def test_unknown_models_are_refused() -> None:
    with pytest.raises(ConfigError):
        MachineBenchConfig(models=("1t",), device=torch.device("cpu"))


def test_a_row_is_there_before_the_next_model_is_measured() -> None:
    config = MachineBenchConfig(models=("29m", "7615m"), device=torch.device("cpu"), batch=1, tokens=2, vocabulary=64)
    assert next(run_machine_bench(config)).model == "29m"
