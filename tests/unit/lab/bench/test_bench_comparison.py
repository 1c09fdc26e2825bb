"""The on-policy comparison: resuming, rows, files and the JSON of both commands."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from p2prl.errors import ConfigError
from p2prl_lab.bench.comparison import benchmark
from p2prl_lab.bench.comparison.benchmark import Case, ComparisonConfig, run_comparison
from p2prl_lab.bench.comparison.on_policy_training import Evaluation, OnPolicyTraining, RecipeResult
from p2prl_lab.bench.comparison.report import as_csv, as_markdown, row_of
from p2prl_lab.bench.training.decoder_shape import initial_weights
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.commands.bench_ppo import bench_ppo
from p2prl_lab.commands.bench_rewards import bench_rewards

PLAN = TrainingPlan(updates=3, evaluate_every=1, evaluation_prompts=4, final_prompts=4)
SHOWN = ("success", "tokens")


@pytest.fixture(autouse=True)
def _cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm starts are plain initial weights, which cost nothing."""
    import torch

    shape = environment_by_name("chain4").shape
    monkeypatch.setattr(
        benchmark, "warm_start_of", lambda _, seeds, __, **___: torch.stack([initial_weights(shape, s) for s in seeds])
    )


def result(seed: int, success: float) -> RecipeResult:
    evaluations = tuple(
        Evaluation(update=u, success=success - d, tokens=6.0 + u, true_steps=3.0, readable=1.0 - d)
        for u, d in ((0, 0.3), (10, 0.1), (20, -0.1), (30, 0.0))
    )
    return RecipeResult(seed=seed, curve=evaluations, grad_norm_max=1.0 + seed)


def config(*cases: Case, seeds: int = 2) -> ComparisonConfig:
    return ComparisonConfig(cases=cases, seeds=seeds, max_new_tokens=10, plan=PLAN)


def test_a_rerun_does_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, tuple[int, ...]]] = []

    class Watched(OnPolicyTraining):
        def __init__(self, environment, recipe, reward, plan, seeds, start) -> None:  # type: ignore[no-untyped-def]
            ran.append((recipe.text, tuple(seeds)))
            assert environment.max_new_tokens == 10
            super().__init__(environment, recipe, reward, plan, seeds, start)

    monkeypatch.setattr(benchmark, "OnPolicyTraining", Watched)
    shares: list[float] = []
    small = config(Case(recipe="ppo:prompts=2"))
    first = run_comparison(small, tmp_path, name="ppo", shown=SHOWN, on_progress=lambda _, share: shares.append(share))
    assert ran == [("ppo:prompts=2", (0, 1))]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert run_comparison(small, tmp_path, name="ppo", shown=SHOWN) == first
    assert len(ran) == 1
    more = config(Case(recipe="ppo:prompts=2"), Case(recipe="dpo:prompts=2"), seeds=3)
    rows = run_comparison(more, tmp_path, name="ppo", shown=SHOWN)
    assert ran[1:] == [("ppo:prompts=2", (2,)), ("dpo:prompts=2", (0, 1, 2))]
    assert [row.recipe for row in rows] == ["ppo:prompts=2", "dpo:prompts=2"]
    assert rows[0].last_per_seed[:2] == first[0].last_per_seed
    assert (tmp_path / "ppo.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 6


def test_rows_hold_means_over_the_last_evaluations() -> None:
    row = row_of("ppo", "success", [result(0, 0.6), result(1, 0.8)])
    assert row.last_per_seed == pytest.approx((0.6, 0.8))
    assert row.last == pytest.approx(0.7)
    assert row.last_deviation == pytest.approx(0.02**0.5)
    assert row.best == pytest.approx(0.8)
    assert row.tokens == pytest.approx(26.0)
    assert row.readable == pytest.approx(1.0)
    assert row.grad_norm_max == 2.0
    (read,) = csv.DictReader(io.StringIO(as_csv([row])))
    assert read["last_per_seed"] == "0.6000 0.8000"
    assert "| ppo | success | 0.800 | 0.700 | 0.141 | 26.00 | 3.00 | 1.000 |" in as_markdown([row])
    assert row_of("ppo", "success", [result(0, 0.6)]).last_deviation == 0.0


def test_both_commands_print_one_json_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "plan_of", lambda updates, rate: PLAN)
    shared = {"seeds": 1, "updates": 30, "learning_rate": 1e-3, "task": "chain4", "seed": 3, "as_json": True}
    bench_rewards(
        rewards="success, success+process", recipe="ppo:prompts=1", max_new_tokens=9, out=tmp_path / "r",
        **shared,  # type: ignore[arg-type]
    )  # fmt: skip
    document = json.loads(capsys.readouterr().out)
    assert [row["reward"] for row in document["results"]] == ["success", "success+process"]
    assert (document["max_new_tokens"], document["seeds"]) == (9, [3])
    bench_ppo(recipes="dpo:prompts=1", out=tmp_path / "p", **shared)  # type: ignore[arg-type]
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {
        "task", "updates", "learning_rate", "max_new_tokens", "seeds", "results", "wall_s",
    }  # fmt: skip
    assert set(document["results"][0]) == {
        "recipe", "reward", "best", "last", "last_per_seed", "last_deviation", "tokens", "true_steps", "readable",
        "grad_norm_max",
    }  # fmt: skip


def test_illegal_comparisons_are_refused() -> None:
    good = {"cases": (Case(recipe="ppo"),), "seeds": 1}
    for wrong in (
        {"cases": ()}, {"cases": (Case(recipe="pppo"),)}, {"cases": (Case(recipe="ppo", reward="fame"),)},
        {"seeds": 0}, {"task": "chain5"}, {"max_new_tokens": 24}, {"max_new_tokens": 0},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            ComparisonConfig(**{**good, **wrong})  # type: ignore[arg-type]
    ComparisonConfig(**{**good, "max_new_tokens": 23})  # type: ignore[arg-type]
