"""The benchmark of the replay's judge: its synthetic groups follow the law, and its rows are what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from p2prl_lab.bench.trust import replay_power
from p2prl_lab.bench.trust.model_groups import model_rows
from p2prl_lab.bench.trust.replay_power import FalseRejects, Power
from p2prl_lab.bench.trust.synthetic_groups import honest_tokens, policy, with_invented


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_synthetic_tokens_follow_the_race(temperature: float) -> None:
    """Against a plain Gumbel race over the whole vocabulary: the same mismatches, margins and log-probs."""
    noise, count = 0.1, 40_000
    kind = policy(spread=2.0, vocabulary=24, temperature=temperature)
    rng = np.random.default_rng(1)
    fast = honest_tokens(kind, count, noise, rng)
    p = kind.probabilities.reshape(-1, 24)[rng.integers(len(kind.sizes), size=count)]
    noisy = np.log(p) + rng.gumbel(size=p.shape)
    errors = rng.normal(0.0, noise / temperature, p.shape)
    drawn, best, here = (noisy + errors).argmax(axis=1), noisy.argmax(axis=1), np.arange(count)
    margins = noisy[here, best] - noisy[here, drawn]
    moved = errors[here, drawn] - (p * errors).sum(axis=1)
    assert (fast.margins > 0).mean() == pytest.approx((margins > 0).mean(), rel=0.08)
    assert fast.margins.sum() == pytest.approx(margins.sum(), rel=0.15)
    assert fast.logprobs.mean() == pytest.approx(np.log(p[here, drawn]).mean(), rel=0.03)
    assert fast.best_logprobs.mean() == pytest.approx(np.log(p[here, best]).mean(), rel=0.03)
    assert np.abs(fast.claimed - fast.logprobs).mean() == pytest.approx(np.abs(moved).mean(), rel=0.05)


def test_without_noise_every_token_is_the_draw() -> None:
    kind = policy(spread=6.0, vocabulary=64, temperature=1.0)
    tokens = honest_tokens(kind, 4000, 0.0, np.random.default_rng(0))
    assert not tokens.margins.any()
    assert (tokens.logprobs == tokens.best_logprobs).all()
    changed = with_invented(tokens, 1.5, np.random.default_rng(0))
    assert np.count_nonzero(changed.margins) == 1
    assert changed.margins.max() == 1.5


def test_rows_of_false_rejects_and_power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_power, "_POOL", 1 << 14)
    made = list(replay_power.cells(20, policies=["usual"], sizes=(8, 512)))
    rows = [row for row in made if isinstance(row, FalseRejects)]
    assert len(rows) == 2 * 3 * 4
    assert all(row.groups == 20 and row.rejected == row.faults == 0 for row in rows)
    found = [row for row in made if isinstance(row, Power)]
    paid = [row for row in found if row.margin >= 1.0 and row.temperature >= 1.0]
    assert len(paid) == 2 * 4 * (4 + 1)
    assert all(row.credited == 0 for row in paid)
    assert any(row.credited == 20 for row in found if row.margin == 0.25 and row.dtype == "bfloat16")
    assert all(row.credited == 0 for row in found if row.dtype == "float32")
    far = [row for row in found if row.margin == 4.0]
    assert all(row.faults == 20 for row in far), "what no class explains is a fault"


def test_real_models_through_real_scorers() -> None:
    torch.set_num_threads(1)
    rows = list(model_rows(6, temperatures=(1.0,)))
    assert {(row.model, row.dtype) for row in rows} == {
        (model, dtype) for model in ("chain4", "walk12") for dtype in ("float32", "bfloat16")
    }
    assert all(row.groups == 6 and row.rejected == row.faults == row.credited == 0 for row in rows)
    assert sum(row.invented for row in rows) > 20
    assert all(row.mismatched == 0 for row in rows if row.dtype == "float32" and row.noise == 0.0)
    assert any(row.mismatched for row in rows if row.noise > 0.01)
