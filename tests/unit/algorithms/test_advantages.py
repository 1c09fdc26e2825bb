"""Advantages against loops over the formulas, and their refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from p2prl.algorithms.advantages import (
    AdvantageConfig,
    AdvantageKind,
    beta_density,
    compute_advantages,
    decoupled_advantages,
    off_policy_optimal_baseline,
    whiten,
)
from p2prl.errors import ConfigError, LocalProtocolError

REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.25, 0.0, 0.0], [0.5, 0.5, 1.0, 0.75]]
LENGTHS = [[3, 5, 1, 2], [7, 1, 1, 4], [2, 2, 9, 9]]


def advantages(kind: AdvantageKind, rewards: list[list[float]] = REWARDS) -> list[list[float]]:
    lengths = torch.tensor(LENGTHS) if kind in ("opo", "reinforce_pp", "reinforce_pp_baseline") else None
    result = compute_advantages(
        torch.tensor(rewards, dtype=torch.float64), AdvantageConfig(kind=kind), lengths_BG=lengths
    )
    return [[float(value) for value in row] for row in result.advantages_BG]


def test_mean_and_std_and_leave_one_out() -> None:
    for row, mean, std, rloo in zip(
        REWARDS, advantages("mean"), advantages("mean_std"), advantages("rloo"), strict=True
    ):
        centre = sum(row) / 4
        deviation = math.sqrt(sum((r - centre) ** 2 for r in row) / 3)
        assert mean == pytest.approx([r - centre for r in row])
        assert std == pytest.approx([(r - centre) / (deviation + 1e-4) for r in row])
        assert rloo == pytest.approx([r - (sum(row) - r) / 3 for r in row])
    assert advantages("none") == REWARDS


def test_opo_uses_the_length_weighted_mean() -> None:
    for row, lengths, got in zip(REWARDS, LENGTHS, advantages("opo"), strict=True):
        base = sum(n * r for n, r in zip(lengths, row, strict=True)) / sum(lengths)
        assert got == pytest.approx([r - base for r in row])


def test_the_optimal_baseline_of_oapl_is_a_log_mean_of_exponentials() -> None:
    for row, got in zip(REWARDS, advantages("optimal"), strict=True):
        value = math.log(sum(math.exp(r) for r in row) / 4)
        assert got == pytest.approx([r - value for r in row])
    rewards = torch.tensor(REWARDS, dtype=torch.float64)
    sharp = compute_advantages(rewards, AdvantageConfig(kind="optimal", optimal_beta=1e-3)).advantages_BG
    torch.testing.assert_close(sharp, rewards - rewards.amax(dim=-1, keepdim=True), rtol=0, atol=2e-3)
    flat = compute_advantages(rewards, AdvantageConfig(kind="optimal", optimal_beta=1e4)).advantages_BG
    torch.testing.assert_close(flat, rewards - rewards.mean(dim=-1, keepdim=True), rtol=0, atol=1e-4)


def test_pass_at_k_rewards_the_best_by_its_lead() -> None:
    assert advantages("pass_at_k") == [[0.0] * 4, [0.0, 0.25, 0.0, 0.0], [0.0, 0.0, 0.25, 0.0]]


def test_reinforce_plus_plus_whitens_over_the_tokens_of_the_batch() -> None:
    means = [[sum(row) / 4] * 4 for row in REWARDS]
    for kind, centers in (("reinforce_pp", [[0.0] * 4] * 3), ("reinforce_pp_baseline", means)):
        tokens = [
            r - center
            for row, lengths, own in zip(REWARDS, LENGTHS, centers, strict=True)
            for r, n, center in zip(row, lengths, own, strict=True)
            for _ in range(n)
        ]
        mean, deviation = float(np.mean(tokens)), float(np.std(tokens, ddof=1))
        for row, own, got in zip(REWARDS, centers, advantages(kind), strict=True):  # type: ignore[arg-type]
            expected = [(r - center - mean) / deviation for r, center in zip(row, own, strict=True)]
            assert got == pytest.approx(expected, rel=1e-6)


def test_reinforce_plus_plus_has_a_signal_where_a_groups_rewards_agree() -> None:
    rewards, lengths = torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.ones(2, 2)
    found = compute_advantages(rewards, AdvantageConfig(kind="reinforce_pp"), lengths_BG=lengths)
    assert found.zero_variance_B.tolist() == [True, False]
    assert found.advantages_BG[0].tolist() == pytest.approx([0.5, 0.5])
    alone = compute_advantages(
        torch.tensor([[1.0], [0.0]]), AdvantageConfig(kind="reinforce_pp"), lengths_BG=lengths[:, :1]
    )
    assert alone.advantages_BG.flatten().tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    silent = compute_advantages(torch.ones(2, 2), AdvantageConfig(kind="reinforce_pp"), lengths_BG=lengths)
    assert silent.advantages_BG.count_nonzero() == 0


def test_the_off_policy_optimal_baseline_weighs_by_squared_ratio_and_score() -> None:
    rng = np.random.default_rng(3)
    log_ratios, norms = rng.normal(0, 2, (3, 4)), rng.uniform(0.1, 3, (3, 4))
    weights = np.exp(log_ratios) ** 2 * norms**2
    expected = (weights * np.array(REWARDS)).sum(-1) / weights.sum(-1)
    rewards = torch.tensor(REWARDS, dtype=torch.float64)
    got = off_policy_optimal_baseline(rewards, torch.tensor(log_ratios), torch.tensor(norms))
    assert got.flatten().tolist() == pytest.approx(expected.tolist())
    silent = off_policy_optimal_baseline(rewards, torch.tensor(log_ratios), torch.zeros(3, 4))
    assert silent.flatten().tolist() == pytest.approx([sum(row) / 4 for row in REWARDS])
    # The variance of w n (R − b), the size of a completion's gradient, is least there.
    spread = [float((weights[1] * (np.array(REWARDS[1]) - b) ** 2).sum()) for b in np.linspace(-1, 1, 201)]
    assert np.linspace(-1, 1, 201)[int(np.argmin(spread))] == pytest.approx(expected[1], abs=0.01)


def test_decoupled_rewards_are_normalized_one_by_one() -> None:
    rewards = np.stack([np.array(REWARDS), 100 * np.array(REWARDS)[::-1]])
    parts = (rewards - rewards.mean(-1, keepdims=True)) / (rewards.std(-1, ddof=1, keepdims=True) + 1e-4)
    total = 0.7 * parts[0] + 0.2 * parts[1]
    expected = (total - total.mean()) / (total.std() + 1e-8)
    got = decoupled_advantages(torch.tensor(rewards), torch.tensor([0.7, 0.2], dtype=torch.float64))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9)
    with pytest.raises(LocalProtocolError, match="weights_K"):
        decoupled_advantages(torch.tensor(rewards), torch.ones(3))


def test_beta_divides_by_the_density_of_the_moment_fit() -> None:
    means = [sum(row) / 4 for row in REWARDS]
    centre = sum(means) / 3
    variance = sum((m - centre) ** 2 for m in means) / 3
    total = centre * (1 - centre) / variance - 1
    alpha, beta = 1 + centre * total / 3, 1 + (1 - centre) * total / 3
    for row, mean, got in zip(REWARDS, means, advantages("beta"), strict=True):
        norm = math.gamma(alpha) * math.gamma(beta) / math.gamma(alpha + beta)
        density = mean ** (alpha - 1) * (1 - mean) ** (beta - 1) / norm
        assert got == pytest.approx([(r - mean) / density for r in row])


def test_beta_falls_back_to_the_mean() -> None:
    assert advantages("beta", REWARDS[:1]) == advantages("mean", REWARDS[:1])
    assert advantages("beta", [REWARDS[0], REWARDS[0]]) == advantages("mean", [REWARDS[0], REWARDS[0]])
    assert beta_density(torch.tensor([0.0, 1.0])).tolist() == [1.0, 1.0]


def test_beta_density_near_the_edge_is_floored() -> None:
    rewards = torch.full((21, 64), 0.0, dtype=torch.float64)
    rewards[:20, :32] = 1.0
    rewards[20, 0] = 1.0
    got = compute_advantages(rewards, AdvantageConfig(kind="beta", beta_density_floor=0.05))
    assert got.advantages_BG[20, 0].item() == pytest.approx((1 - 1 / 64) / 0.05)
    assert got.advantages_BG[0, 0].item() < 1


@pytest.mark.parametrize("kind", ["mean", "mean_std", "opo", "rloo", "beta", "optimal", "reinforce_pp_baseline"])
def test_zero_variance_groups_get_exactly_zero_and_are_reported(kind: AdvantageKind) -> None:
    rewards = torch.tensor([[0.1, 0.1, 0.1], [1.0, 0.0, 1.0]])
    got = compute_advantages(rewards, AdvantageConfig(kind=kind), lengths_BG=torch.tensor([[1, 2, 7], [3, 3, 3]]))
    assert got.zero_variance_B.tolist() == [True, False]
    assert got.advantages_BG[0].tolist() == [0.0, 0.0, 0.0]
    assert (got.advantages_BG[1] != 0).all()


@pytest.mark.parametrize("kind", ["mean", "mean_std", "beta"])
def test_groups_of_one_give_no_gradient(kind: AdvantageKind) -> None:
    got = compute_advantages(torch.tensor([[1.0], [0.5]]), AdvantageConfig(kind=kind))
    assert got.advantages_BG.count_nonzero() == 0
    assert got.zero_variance_B.all()


def test_half_precision_rewards_are_computed_in_float32() -> None:
    got = compute_advantages(torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float16), AdvantageConfig())
    assert got.advantages_BG.dtype == torch.float32
    assert got.advantages_BG[0].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_unfit_rewards_are_refused() -> None:
    two = torch.tensor([[1.0, 0.0]])
    with pytest.raises(ConfigError, match="rloo"):
        compute_advantages(torch.tensor([[1.0]]), AdvantageConfig(kind="rloo"))
    with pytest.raises(ConfigError, match="pass_at_k"):
        compute_advantages(torch.tensor([[1.0]]), AdvantageConfig(kind="pass_at_k"))
    for kind in ("opo", "reinforce_pp", "reinforce_pp_baseline"):
        with pytest.raises(ConfigError, match=kind):
            compute_advantages(two, AdvantageConfig(kind=kind))
    with pytest.raises(ConfigError, match="optimal_beta"):
        AdvantageConfig(optimal_beta=0.0)
    with pytest.raises(ConfigError, match="beta"):
        compute_advantages(two * -1, AdvantageConfig(kind="beta"))
    with pytest.raises(ConfigError, match=r"advantage\.kind"):
        AdvantageConfig(kind="median")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="std_epsilon"):
        AdvantageConfig(std_epsilon=0.0)
    for bad in (torch.tensor([[float("nan"), 1.0]]), torch.tensor([1.0, 0.0]), torch.empty(0, 3)):
        with pytest.raises(LocalProtocolError, match="rewards_BG"):
            compute_advantages(bad, AdvantageConfig())


def test_whitening_gives_mean_zero_and_deviation_one() -> None:
    got = whiten(torch.tensor(REWARDS, dtype=torch.float64))
    assert float(got.mean()) == pytest.approx(0, abs=1e-12)
    assert float(got.std(unbiased=False)) == pytest.approx(1, abs=1e-6)
    assert whiten(torch.ones(2, 2)).count_nonzero() == 0


def test_masked_whitening_reads_only_what_is_on_the_mask() -> None:
    rng = np.random.default_rng(8)
    values, mask = rng.normal(2.0, 3.0, (2, 3, 5)), rng.random((2, 3, 5)) < 0.6
    on = values[mask]
    spoiled = np.where(mask, values, np.nan)
    got = whiten(torch.tensor(spoiled), torch.tensor(mask)).numpy()
    np.testing.assert_allclose(got[mask], (on - on.mean()) / (on.std() + 1e-8), rtol=1e-9)
    assert (got[~mask] == 0).all()
    with pytest.raises(LocalProtocolError, match="mask"):
        whiten(torch.tensor(values), torch.zeros(2, 3, 5))
    with pytest.raises(LocalProtocolError, match="mask"):
        whiten(torch.tensor(values), torch.ones(2, 3))
