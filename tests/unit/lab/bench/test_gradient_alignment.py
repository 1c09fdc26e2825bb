"""What Gradient Alignment Control leaves of a gradient."""

from __future__ import annotations

import pytest
import torch

from p2prl_lab.bench.training.gradient_alignment import GradientAlignment


@pytest.mark.parametrize("bound", [0.0, 0.3])
def test_only_the_excess_along_the_last_gradient_is_removed(bound: float) -> None:
    control = GradientAlignment(bound)
    first = torch.tensor([[2.0, 0.0], [0.0, 5.0], [1.0, 1.0], [0.0, 0.0]])
    assert control.controlled(first) is first
    # Aligned by .6, at right angles, opposed, and after a gradient of zero.
    found = control.controlled(torch.tensor([[3.0, 4.0], [7.0, 0.0], [-2.0, -2.0], [1.0, 2.0]]))
    assert found.tolist() == [
        pytest.approx([5 * bound, 4.0]), pytest.approx([7.0, 0.0]), pytest.approx([-2.0, -2.0]), [1.0, 2.0],
    ]  # fmt: skip


def test_a_gradient_is_compared_with_the_one_that_came_in() -> None:
    control = GradientAlignment(0.0)
    for _ in range(2):
        control.controlled(torch.tensor([[1.0, 0.0]]))
    assert control.controlled(torch.tensor([[1.0, 1.0]])).tolist() == [[0.0, 1.0]]
