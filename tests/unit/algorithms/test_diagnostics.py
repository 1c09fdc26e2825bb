"""Diagnostics per staleness bucket against loops, and the bucketing itself."""

from __future__ import annotations

import math

import pytest
import torch

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.diagnostics import diagnose
from p2prl.algorithms.loss_registry import build_loss
from p2prl.errors import ConfigError


def make(staleness: list[list[int]] | None) -> tuple[torch.Tensor, RolloutBatch]:
    g = torch.Generator().manual_seed(3)
    behavior = -torch.rand(2, 3, 4, generator=g, dtype=torch.float64) - 0.1
    policy = (behavior + 0.6 * torch.randn(2, 3, 4, generator=g, dtype=torch.float64)).clamp(max=-1e-3)
    mask = torch.rand(2, 3, 4, generator=g) < 0.7
    mask[..., 0] = True
    batch = RolloutBatch(
        behavior_logprobs_BGT=behavior,
        mask_BGT=mask,
        advantages_BG=torch.tensor([[1.0, -1.0, 0.5], [-0.5, 1.0, -1.0]]),
        staleness_BG=None if staleness is None else torch.tensor(staleness),
    )
    return policy, batch


def test_each_bucket_equals_loops_over_its_completions() -> None:
    staleness = [[0, 5, 7], [300, 0, 4]]
    policy, batch = make(staleness)
    output = build_loss("cispo", options={"cap": 1.1}).loss(policy, batch)
    rows = {row.staleness_from: row for row in diagnose(policy, batch, output)}
    members = {0: [(0, 0), (1, 1)], 4: [(0, 1), (0, 2), (1, 2)], 256: [(1, 0)]}
    assert list(rows) == list(members)
    for start, cells in members.items():
        row, tokens, weights, bounded, sequences = rows[start], [], [], [], []
        for b, i in cells:
            on = batch.mask_BGT[b, i]
            ratios = (policy - batch.behavior_logprobs_BGT)[b, i][on].tolist()
            tokens += ratios
            sequences.append(math.exp(sum(ratios)))
            weights += [min(math.exp(x), 1.1) for x in ratios]
            bounded += [math.exp(x) > 1.1 for x in ratios]
        n = len(tokens)
        assert (row.completions, row.tokens) == (len(cells), n)
        assert row.ess_fraction == pytest.approx(sum(sequences) ** 2 / sum(w * w for w in sequences) / len(cells))
        assert row.kl_k1 == pytest.approx(-sum(tokens) / n)
        assert row.kl_k3 == pytest.approx(sum(math.exp(x) - 1 - x for x in tokens) / n)
        assert row.chi2 == pytest.approx(sum(math.exp(2 * x) for x in tokens) / n - 1)
        assert row.m2 == pytest.approx(sum(x * x for x in tokens) / n)
        assert row.bounded_fraction == pytest.approx(sum(bounded) / n)
        assert row.weight_max == pytest.approx(max(weights))
        mean = sum(weights) / n
        assert row.weight_variance == pytest.approx(sum((w - mean) ** 2 for w in weights) / n)


def test_without_staleness_there_is_one_bucket() -> None:
    policy, batch = make(None)
    rows = diagnose(policy, batch, build_loss("gepo").loss(policy, batch))
    assert [row.staleness_from for row in rows] == [0]
    assert rows[0].completions == 6


@pytest.mark.parametrize(("staleness", "bucket"), [(0, 0), (1, 1), (3, 2), (4, 4), (127, 64), (128, 128), (9999, 256)])
def test_edges_belong_to_the_bucket_they_open(staleness: int, bucket: int) -> None:
    policy, batch = make([[staleness] * 3] * 2)
    assert [row.staleness_from for row in diagnose(policy, batch, build_loss("gepo").loss(policy, batch))] == [bucket]


def test_on_policy_distances_are_zero() -> None:
    _, batch = make([[0] * 3] * 2)
    output = build_loss("reinforce").loss(batch.behavior_logprobs_BGT, batch)
    (row,) = diagnose(batch.behavior_logprobs_BGT, batch, output)
    assert row.ess_fraction == pytest.approx(1)
    assert (row.kl_k1, row.kl_k3, row.chi2, row.m2, row.weight_variance) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("edges", [(), (1, 2), (0, 2, 2), (0, 3, 1)])
def test_edges_that_do_not_rise_from_zero_are_refused(edges: tuple[int, ...]) -> None:
    policy, batch = make(None)
    with pytest.raises(ConfigError, match="edges"):
        diagnose(policy, batch, build_loss("gepo").loss(policy, batch), edges=edges)
