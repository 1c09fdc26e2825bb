"""DPO's pairs: their completions, skipped groups, and guards."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import build_loss


def make(advantages: list[list[float]]) -> tuple[Tensor, RolloutBatch]:
    shape = (len(advantages), len(advantages[0]), 3)
    g = torch.Generator().manual_seed(5)
    policy = (-torch.rand(shape, generator=g, dtype=torch.float64) - 0.05).requires_grad_()
    batch = RolloutBatch(
        behavior_logprobs_BGT=-torch.rand(shape, generator=g, dtype=torch.float64) - 0.05,
        mask_BGT=torch.ones(shape),
        advantages_BG=torch.tensor(advantages, dtype=torch.float64),
    )
    return policy, batch


def gradient(policy: Tensor, batch: RolloutBatch) -> Tensor:
    return torch.autograd.grad(build_loss("dpo").loss(policy, batch).loss, policy)[0]


def test_best_rises_and_worst_falls() -> None:
    policy, batch = make([[0.1, 0.9, -0.6, -0.4]])
    got = gradient(policy, batch)[0]
    assert (got[1] < 0).all()
    assert (got[2] > 0).all()
    assert got[[0, 3]].count_nonzero() == 0
    torch.testing.assert_close(got[1], -got[2])


def test_order_does_not_matter_even_with_ties() -> None:
    policy, batch = make([[0.5, -0.5, 0.5, -0.5, 0.0]])
    order = torch.tensor([3, 0, 4, 2, 1])
    mixed = dataclasses.replace(
        batch,
        behavior_logprobs_BGT=batch.behavior_logprobs_BGT[:, order],
        advantages_BG=batch.advantages_BG[:, order],
    )
    torch.testing.assert_close(
        gradient(policy, batch)[:, order], gradient(policy.detach()[:, order].requires_grad_(), mixed)
    )


def test_group_without_a_pair_counts_in_the_mean() -> None:
    policy, batch = make([[0.5, -0.5], [0.0, 0.0]])
    output = build_loss("dpo").loss(policy, batch)
    alone = build_loss("dpo").loss(
        policy[:1],
        dataclasses.replace(
            batch,
            behavior_logprobs_BGT=batch.behavior_logprobs_BGT[:1],
            mask_BGT=batch.mask_BGT[:1],
            advantages_BG=batch.advantages_BG[:1],
        ),
    )
    assert output.metrics["zero_advantage_groups"] == 1
    assert output.metrics["pairs"] == 1
    torch.testing.assert_close(output.loss, alone.loss / 2)
    assert gradient(policy, batch)[1].count_nonzero() == 0


def test_guard_removes_the_pair() -> None:
    policy, batch = make([[0.5, -0.5, 0.0]])
    guard = torch.ones(1, 3, 3)
    guard[0, 1] = 0
    assert gradient(policy, dataclasses.replace(batch, guard_BGT=guard)).count_nonzero() == 0


def test_the_reference_replaces_the_sampler() -> None:
    policy, batch = make([[0.5, -0.5]])
    same_as_policy = dataclasses.replace(batch, reference_logprobs_BGT=policy.detach())
    loss = build_loss("dpo").loss(policy, same_as_policy).loss
    torch.testing.assert_close(loss, torch.tensor(2.0, dtype=torch.float64).log())


def test_pair_accuracy() -> None:
    policy, batch = make([[0.5, -0.5]])
    reference = policy.detach().clone()
    reference[0, 0] -= 1
    right = dataclasses.replace(batch, reference_logprobs_BGT=reference)
    assert build_loss("dpo").loss(policy, right).metrics["pair_accuracy"] == 1
    wrong = dataclasses.replace(right, advantages_BG=-batch.advantages_BG)
    assert build_loss("dpo").loss(policy, wrong).metrics["pair_accuracy"] == 0
