"""Guards against their formulas, their ends and their refusals."""

from __future__ import annotations

import math

import pytest
import torch

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.guards import (
    ema_update,
    group_deflation_keep,
    kl_brake,
    negative_tail_keep,
    second_moment_keep,
    spread,
    trust_caps,
    vcpo_factor,
)
from p2prl.algorithms.microbatch import microbatch
from p2prl.errors import ConfigError, LocalProtocolError


@pytest.mark.parametrize(("kl", "factor"), [(-1.0, 1.0), (0.0, 1.0), (0.05, 1.0), (0.2, 0.5), (5.0, 0.1), (1e30, 0.0)])
def test_the_brake_is_the_root_of_target_over_kl(kl: float, factor: float) -> None:
    assert kl_brake(torch.tensor(kl)).item() == pytest.approx(factor, abs=1e-7)


def test_nan_kl_raises_instead_of_releasing_the_brake() -> None:
    with pytest.raises(LocalProtocolError, match="kl_per_token"):
        kl_brake(torch.tensor(float("nan")))
    with pytest.raises(ConfigError, match="target_kl"):
        kl_brake(torch.tensor(0.1), target_kl=0.0)


def test_vcpo_scales_by_the_root_of_the_effective_share() -> None:
    assert vcpo_factor(torch.zeros(4, 8)).item() == pytest.approx(1)
    assert vcpo_factor(torch.tensor([[0.0, -1e9], [-1e9, -1e9]])).item() == pytest.approx(math.sqrt(1 / 4))
    ratios = [0.5, 1.0, 4.0]
    share = sum(ratios) ** 2 / sum(r * r for r in ratios) / 3
    assert vcpo_factor(torch.tensor(ratios).log()).item() == pytest.approx(math.sqrt(share))
    with pytest.raises(LocalProtocolError, match="empty"):
        vcpo_factor(torch.empty(0))


def test_the_second_moment_mask_keeps_the_most_it_may() -> None:
    log_ratios = torch.tensor([[[0.1, -0.2, 0.3, -5.0, 0.0]]])
    on = torch.ones(1, 1, 5, dtype=torch.bool)
    assert second_moment_keep(log_ratios, on, budget=0.04).tolist() == [[[True, True, True, False, True]]]
    assert second_moment_keep(log_ratios, on, budget=0.02).tolist() == [[[True, True, False, False, True]]]
    assert second_moment_keep(log_ratios, on, budget=99.0).all()


def test_the_second_moment_mask_drops_ties_together_and_may_drop_all() -> None:
    ties = torch.tensor([[[0.3, -0.3, 0.0]]])
    on = torch.ones(1, 1, 3, dtype=torch.bool)
    assert second_moment_keep(ties, on, budget=0.05).tolist() == [[[False, False, True]]]
    assert not second_moment_keep(torch.full((1, 1, 3), 2.0), on).any()


def test_the_second_moment_mask_reads_the_mask_only() -> None:
    log_ratios = torch.tensor([[[0.1, 50.0]]])
    assert second_moment_keep(log_ratios, torch.tensor([[[True, False]]])).tolist() == [[[True, False]]]
    with pytest.raises(LocalProtocolError, match="mask_BGT"):
        second_moment_keep(log_ratios, torch.zeros(1, 1, 2))


def test_the_negative_tail_mask_drops_abandoned_negatives_only() -> None:
    geometric = torch.tensor([[-1.0, -1.0, -0.4, 1.0]])
    advantages = torch.tensor([[-1.0, 1.0, -1.0, -1.0]])
    assert negative_tail_keep(geometric, advantages).tolist() == [[False, True, True, True]]
    assert negative_tail_keep(geometric, advantages, bound_nats=0.3).tolist() == [[False, True, False, True]]


def shifted_batch(nats: float) -> tuple[torch.Tensor, RolloutBatch]:
    policy = torch.full((1, 4, 3), -4.0, dtype=torch.float64)
    behavior = policy - nats
    return policy, RolloutBatch(
        behavior_logprobs_BGT=behavior, mask_BGT=torch.ones(1, 4, 3), advantages_BG=torch.zeros(1, 4)
    )


@pytest.mark.parametrize(("nats", "keep"), [(0.0, True), (0.49, True), (0.51, False), (-2.9, True), (-3.1, False)])
def test_the_deflation_bound_is_strict_above_and_wide_below(nats: float, keep: bool) -> None:
    policy, batch = shifted_batch(nats)
    assert group_deflation_keep(policy, batch).tolist() == [keep]


def test_the_deflation_bound_needs_the_whole_group() -> None:
    policy, batch = shifted_batch(0.0)
    with pytest.raises(LocalProtocolError, match="whole groups"):
        group_deflation_keep(policy[:, :2], microbatch(batch, completions=slice(0, 2)))


def test_trust_caps_run_from_unverified_to_verified() -> None:
    assert trust_caps(torch.tensor([[0.0, 0.5, 1.0]])).tolist() == [[1.0, 1.5, 2.0]]
    with pytest.raises(LocalProtocolError, match="trust_BG"):
        trust_caps(torch.tensor([[1.1]]))
    with pytest.raises(ConfigError, match="unverified_cap"):
        trust_caps(torch.tensor([[0.0]]), unverified_cap=3.0)


def test_keep_masks_of_any_rank_spread_over_tokens() -> None:
    mask = torch.ones(2, 2, 3)
    assert spread(torch.tensor([True, False]), mask)[:, 0, 0].tolist() == [1.0, 0.0]
    assert spread(torch.tensor([[True, False], [False, True]]), mask)[..., 2].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert spread(mask.bool(), mask).tolist() == mask.tolist()
    with pytest.raises(LocalProtocolError, match="keep"):
        spread(torch.tensor([True, False, True]), mask)


def test_the_moving_reference_moves_by_its_rate() -> None:
    reference, policy = [torch.zeros(2), torch.ones(1)], [torch.ones(2, requires_grad=True), torch.full((1,), 3.0)]
    ema_update(reference, policy, rate=0.25)
    assert reference[0].tolist() == [0.25, 0.25]
    assert reference[1].tolist() == [1.5]
    with pytest.raises(ConfigError, match="rate"):
        ema_update(reference, policy, rate=1.5)
