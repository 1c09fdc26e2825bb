"""Measure how Triton multiplies float32 matrices where a kernel leaves the precision open, as vLLM's attention does.

On cards with tensor cores its default is TF32, which rounds every factor to 10 bits: tokens sampled with it do not
replay. `TRITON_F32_DEFAULT=ieee` makes products exact, where the version of Triton follows it.

Importing this needs Triton, which torch for CUDA brings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

_SIDE = 16
"""Rows and columns: the fewest that a tensor core multiplies."""

_FINE = 2.0**-16
"""Below the last bit of TF32 beside 1, and above that of float32."""


def multiplies_exactly(device: torch.device) -> bool:
    """Whether products of float32 numbers keep the bits that TF32 drops. The first call compiles a kernel.

    `RuntimeError` where it cannot.
    """
    factors = torch.full((_SIDE, _SIDE), 1.0 + _FINE, device=device)
    identity, made = torch.eye(_SIDE, device=device), torch.empty_like(factors)
    try:
        with torch.cuda.device(device):
            _multiply[(1,)](factors, identity, made, SIDE=_SIDE)
    except triton.TritonError as error:  # such as of an assembler that does not know the card
        raise RuntimeError(str(error)) from error
    return torch.equal(made, factors)


def _kernel(function: Callable[..., Any]) -> Any:
    return triton.jit(function)


@_kernel
def _multiply(left: tl.tensor, right: tl.tensor, product: tl.tensor, SIDE: tl.constexpr) -> None:
    cells = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    tl.store(product + cells, tl.dot(tl.load(left + cells), tl.load(right + cells)))
