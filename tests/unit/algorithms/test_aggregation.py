"""Aggregation against loops, and its refusals."""

from __future__ import annotations

import pytest
import torch

from p2prl.algorithms.aggregation import AggregationConfig, AggregationKind, aggregate
from p2prl.errors import ConfigError

LOSSES = torch.tensor([[[1.0, 2.0, 4.0], [8.0, float("nan"), float("nan")]]])
MASK = torch.tensor([[[1, 1, 1], [1, 0, 0]]])

EXPECTED = {
    "seq_mean": (7 / 3 + 8) / 2,
    "token_mean": 15 / 4,
    "fixed_length": 15 / (2 * 10),
    "delta_l": (3**-0.75 * 7 + 8) / (10 * (3**-0.75 + 1)),
}


@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_each_kind_equals_its_formula(kind: AggregationKind) -> None:
    cfg = AggregationConfig(kind=kind, max_completion_tokens=10)
    assert aggregate(LOSSES, MASK, cfg).item() == pytest.approx(EXPECTED[kind])


def test_delta_l_spans_fixed_length_and_inverse_length() -> None:
    flat = aggregate(LOSSES, MASK, AggregationConfig(kind="delta_l", max_completion_tokens=10, delta_l_alpha=0.0))
    fixed = aggregate(LOSSES, MASK, AggregationConfig(kind="fixed_length", max_completion_tokens=10))
    assert flat.item() == pytest.approx(fixed.item())
    inverse = aggregate(LOSSES, MASK, AggregationConfig(kind="delta_l", max_completion_tokens=10, delta_l_alpha=1.0))
    assert inverse.item() == pytest.approx((7 / 3 + 8) / (10 * (1 / 3 + 1)))


@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_parts_add_up(kind: AggregationKind) -> None:
    cfg = AggregationConfig(kind=kind, max_completion_tokens=10)
    lengths = torch.tensor([3, 1])
    parts = [aggregate(LOSSES[:, [i]], MASK[:, [i]], cfg, update_lengths_N=lengths) for i in range(2)]
    assert sum(part.item() for part in parts) == pytest.approx(EXPECTED[kind])


def test_meaningless_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"aggregation\.kind") as caught:
        AggregationConfig(kind="token_meen")  # type: ignore[arg-type]
    assert "token_mean" in caught.value.remedy
    with pytest.raises(ConfigError, match="max_completion_tokens"):
        AggregationConfig(kind="delta_l")
    with pytest.raises(ConfigError, match="max_completion_tokens"):
        AggregationConfig(max_completion_tokens=0)
    with pytest.raises(ConfigError, match="delta_l_alpha"):
        AggregationConfig(delta_l_alpha=1.5)
