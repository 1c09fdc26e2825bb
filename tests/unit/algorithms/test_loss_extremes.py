"""Safety of every loss: log-ratios of ±1e4, 1e5 tokens; and refusal of half precision and of invalid input."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.diagnostics import diagnose
from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, build_loss
from p2prl.errors import LocalProtocolError

INF = float("inf")


def batch_of(behavior: Tensor, **more: object) -> RolloutBatch:
    groups, size, _ = behavior.shape
    fields: dict[str, object] = {
        "behavior_logprobs_BGT": behavior,
        "mask_BGT": torch.ones(behavior.shape, dtype=torch.bool),
        "advantages_BG": torch.linspace(-1, 1, size).expand(groups, size),
        "staleness_BG": torch.arange(size).expand(groups, size) * 40,
        **more,
    }
    return RolloutBatch(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(BUILTIN_LOSSES))
def test_log_ratios_of_ten_thousand_nats_stay_finite(name: str, dtype: torch.dtype) -> None:
    low, high = -1e4, -1e-3
    behavior = torch.tensor([low, high, low, high]).view(1, 4, 1).repeat(2, 1, 3)
    policy = torch.tensor([high, low, low, high]).view(1, 4, 1).repeat(2, 1, 3)
    policy[1] = policy[1].flip(0)
    leaf = policy.to(dtype).requires_grad_()
    batch = batch_of(behavior.to(dtype))
    output = build_loss(name, max_completion_tokens=8).loss(leaf, batch)
    (gradient,) = torch.autograd.grad(output.loss, leaf)
    assert torch.isfinite(output.loss)
    assert torch.isfinite(gradient).all()
    assert all(torch.isfinite(value) for value in output.metrics.values())
    for row in diagnose(leaf, batch, output):
        assert all(abs(value) < INF for value in dataclasses.astuple(row))


@pytest.mark.parametrize("name", sorted(BUILTIN_LOSSES))
def test_a_hundred_thousand_tokens_stay_finite(name: str) -> None:
    g = torch.Generator().manual_seed(0)
    behavior = -torch.rand(1, 4, 100_000, generator=g) - 0.05
    policy = (behavior + 0.3 * torch.randn(behavior.shape, generator=g)).clamp(max=-1e-3)
    policy[0, 0], policy[0, 3] = -50.0, -1e-3
    leaf = policy.requires_grad_()
    output = build_loss(name, max_completion_tokens=100_000).loss(leaf, batch_of(behavior))
    (gradient,) = torch.autograd.grad(output.loss, leaf)
    assert torch.isfinite(output.loss)
    assert torch.isfinite(gradient).all()
    assert all(torch.isfinite(value) for value in output.metrics.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", sorted(BUILTIN_LOSSES))
def test_half_precision_logprobs_are_refused(name: str, dtype: torch.dtype) -> None:
    """Rounding moves ratios across clips and masks, so a conversion after it does not repair the gradient."""
    logprobs = -torch.rand(2, 4, 5, generator=torch.Generator().manual_seed(1)) - 0.05
    objective = build_loss(name, max_completion_tokens=8)
    with pytest.raises(LocalProtocolError, match=r"policy_logprobs_BGT is (b?)float16: .*float32"):
        objective.loss(logprobs.to(dtype).requires_grad_(), batch_of(logprobs))
    with pytest.raises(LocalProtocolError, match="behavior_logprobs_BGT is"):
        batch_of(logprobs.to(dtype))


@pytest.mark.parametrize("name", sorted(BUILTIN_LOSSES))
def test_float32_gradients_equal_float64(name: str) -> None:
    g = torch.Generator().manual_seed(1)
    behavior = -torch.rand(2, 4, 5, generator=g) - 0.05
    policy = (behavior + 0.3 * torch.randn(2, 4, 5, generator=g)).clamp(max=-1e-3)
    objective = build_loss(name, max_completion_tokens=8)
    gradients: list[Tensor] = []
    for dtype in (torch.float32, torch.float64):
        leaf = policy.to(dtype).requires_grad_()
        gradients += torch.autograd.grad(objective.loss(leaf, batch_of(behavior.to(dtype))).loss, leaf)
        assert gradients[-1].dtype == dtype
    torch.testing.assert_close(gradients[0].double(), gradients[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["gepo_t", "gex"])
def test_weights_never_exceed_the_cap(name: str) -> None:
    for spread in (0.0, 0.5, 5.0, 500.0):
        g = torch.Generator().manual_seed(2)
        behavior = -torch.rand(4, 8, 12, generator=g) * max(spread, 1)
        policy = -torch.rand(4, 8, 12, generator=g) * max(spread, 1)
        output = build_loss(name).loss(policy, batch_of(behavior))
        assert output.weights_BGT.max() <= 2 + 1e-6
        negatives = output.weights_BGT[:, :4]
        assert negatives.max() <= 1 + 1e-6


@pytest.mark.parametrize("bad", [float("nan"), -INF, INF, 0.5])
@pytest.mark.parametrize("field", ["behavior_logprobs_BGT", "proximal_logprobs_BGT", "reference_logprobs_BGT"])
def test_impossible_logprobs_in_a_batch_are_refused_by_name(field: str, bad: float) -> None:
    behavior = -torch.ones(2, 3, 4)
    spoiled = -torch.ones(2, 3, 4)
    spoiled[1, 2, 3] = bad
    with pytest.raises(LocalProtocolError, match=field):
        dataclasses.replace(batch_of(behavior), **{field: spoiled})  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [float("nan"), -INF, INF, 0.5])
@pytest.mark.parametrize("name", sorted(BUILTIN_LOSSES))
def test_impossible_policy_logprobs_are_refused_by_name(name: str, bad: float) -> None:
    policy = -torch.ones(2, 3, 4)
    policy[0, 1, 0] = bad
    with pytest.raises(LocalProtocolError, match="policy_logprobs_BGT"):
        build_loss(name, max_completion_tokens=8).loss(policy, batch_of(-torch.ones(2, 3, 4)))


def test_a_wrong_shape_of_the_policy_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="policy_logprobs_BGT has shape"):
        build_loss("grpo").loss(-torch.ones(2, 3, 5), batch_of(-torch.ones(2, 3, 4)))


WRONG: list[tuple[str, object]] = [
    ("behavior_logprobs_BGT", -torch.ones(2, 3, 5)),
    ("advantages_BG", torch.zeros(2, 4)),
    ("advantages_BG", torch.full((2, 3), float("nan"))),
    ("token_advantages_BGT", torch.zeros(2, 3)),
    ("token_advantages_BGT", torch.full((2, 3, 4), INF)),
    ("staleness_BG", torch.full((2, 3), -1)),
    ("staleness_BG", torch.zeros(3, 2)),
    ("group_log_expectation_B", torch.zeros(3)),
    ("group_log_expectation_B", torch.full((2,), INF)),
    ("guard_BGT", torch.full((2, 3, 4), 1.5)),
    ("guard_BGT", torch.full((2, 3, 4), float("nan"))),
    ("weight_cap_BG", torch.full((2, 3), -0.1)),
    ("weight_cap_BG", torch.full((2, 3), float("nan"))),
    ("update_lengths_N", torch.ones(5)),
    ("update_lengths_N", torch.zeros(6)),
    ("update_lengths_N", torch.ones(2, 3)),
    ("mask_BGT", torch.ones(2, 3)),
    ("mask_BGT", torch.ones(2, 0, 4)),
    ("mask_BGT", torch.zeros(2, 3, 4)),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_batch_that_cannot_be_right_is_refused_by_name(field: str, value: Tensor) -> None:
    good = batch_of(-torch.ones(2, 3, 4))
    with pytest.raises(LocalProtocolError, match=field):
        dataclasses.replace(good, **{field: value})  # type: ignore[arg-type]


def test_one_empty_completion_is_enough_to_refuse() -> None:
    mask = torch.ones(2, 3, 4)
    mask[1, 1] = 0
    with pytest.raises(LocalProtocolError, match="mask_BGT is empty"):
        batch_of(-torch.ones(2, 3, 4), mask_BGT=mask)


def test_a3po_without_staleness_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="staleness_BG"):
        build_loss("a3po").loss(-torch.ones(2, 3, 4), batch_of(-torch.ones(2, 3, 4), staleness_BG=None))
