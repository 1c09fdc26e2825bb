"""The norm of a large gradient, of which a block at a time is widened."""

from __future__ import annotations

import pytest
import torch

from p2prl.ranks.rank import square_sum


@pytest.mark.parametrize("elements", [1, 3, (1 << 19) + 5, 3 << 19])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squares_of_all_blocks_add_up_in_float64(elements: int, dtype: torch.dtype) -> None:
    gradient = torch.randn(elements, generator=torch.Generator().manual_seed(elements)).to(dtype)
    found = square_sum(gradient[:, None])
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(float((gradient.double() ** 2).sum()), rel=1e-12)
