"""Global AMSGrad: its formula, what a rare gradient moves, and its state."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2prl.algorithms.global_amsgrad import GlobalAmsgrad
from p2prl.errors import LocalProtocolError

BETA2 = 0.99


def factors(norms: list[float], beta2: float = BETA2) -> list[float]:
    subject = GlobalAmsgrad(beta2=beta2)
    return [float(subject.factor(torch.tensor(norm, dtype=torch.float64))) for norm in norms]


def by_sums(norms: list[float], beta2: float = BETA2) -> list[float]:
    """The formula with its sums written out, from Reddi, Kale and Kumar with one weight: the norm."""
    means = [
        math.fsum((1 - beta2) * beta2 ** (last - i) * norms[i] ** 2 for i in range(last + 1))
        for last in range(len(norms))
    ]
    return [
        math.sqrt(min(1.0, mean / (1 - beta2 ** (i + 1)) / max(means[: i + 1]))) if max(means[: i + 1]) else 0.0
        for i, mean in enumerate(means)
    ]


@given(norms=st.lists(st.floats(1e-6, 1.0) | st.just(0.0), min_size=1, max_size=40), beta2=st.sampled_from([0.5, 0.99]))
def test_is_the_formula(norms: list[float], beta2: float) -> None:
    assert factors(norms, beta2) == pytest.approx(by_sums(norms, beta2), rel=1e-9, abs=1e-12)


def test_gradients_of_one_size_keep_the_learning_rate_and_small_ones_lower_it_in_proportion() -> None:
    assert factors([0.3] * 500) == [1.0] * 500
    assert factors([0.5] * 1000 + [0.05] * 2000)[-1] == pytest.approx(0.1, rel=1e-3)


def test_one_large_first_gradient_sets_no_level() -> None:
    assert min(factors([1.0] + [0.2] * 500)) > 0.9


def test_the_learning_rate_comes_back_with_the_gradient() -> None:
    found = factors([0.5] * 1000 + [0.0] * 1000 + [0.5] * 1000)
    assert found[1999] < 0.01 < 0.99 < found[-1]


def test_adam_moves_by_what_a_rare_gradient_is_worth() -> None:
    """After a thousand silent updates, Adam alone moves a weight by several learning rates for one small gradient."""

    def moved(*, follows: bool) -> float:
        weight = torch.zeros(1, requires_grad=True)
        adam = torch.optim.Adam([weight], lr=1.0, betas=(0.9, BETA2))
        subject = GlobalAmsgrad(beta2=BETA2)
        for step in range(2100):
            norm = 1.0 if step < 1000 else 0.01 if step == 2000 else 0.0
            weight.grad = torch.full((1,), norm * (-1) ** step)
            factor = float(subject.factor(torch.tensor(norm)))
            adam.param_groups[0]["lr"] = factor if follows else 1.0
            if step == 2000:
                before = weight.item()
            adam.step()
        return abs(weight.item() - before)

    assert moved(follows=False) > 1.0
    assert moved(follows=True) < 0.05


def test_many_side_by_side_are_as_many_alone() -> None:
    norms_NM = torch.rand(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = GlobalAmsgrad(beta2=BETA2)
    found_NM = torch.stack([together.factor(norms_M) for norms_M in norms_NM])
    for index in range(3):
        assert found_NM[:, index].tolist() == factors(norms_NM[:, index].tolist())


def test_state_goes_through_json() -> None:
    norms = [0.9, 0.1, 0.3, 0.02, 0.0, 0.7]
    first = GlobalAmsgrad(beta2=BETA2)
    for norm in norms[:3]:
        first.factor(torch.tensor(norm, dtype=torch.float64))
    again = GlobalAmsgrad(beta2=BETA2)
    again.restore(json.loads(json.dumps(first.state())))
    rest = [float(again.factor(torch.tensor(norm, dtype=torch.float64))) for norm in norms[3:]]
    assert rest == factors(norms)[3:]
    again.restore({})
    assert again.state() != GlobalAmsgrad(beta2=BETA2).state()


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_norms_that_are_not_finite_are_refused(norm: float) -> None:
    with pytest.raises(LocalProtocolError, match="not finite"):
        GlobalAmsgrad(beta2=BETA2).factor(torch.tensor(norm))
