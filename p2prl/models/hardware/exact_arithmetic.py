"""Switch off shortcuts that round products to fewer bits than the dtype has, in every engine and scorer.

TF32 keeps 10 bits of each factor: a hundred times the noise of float32, and not what the dtype of an engine class
means. Sums of 16-bit products are kept in float32, whose order of adding alone is noise enough.
"""

from __future__ import annotations

import torch


def use_exact_arithmetic() -> None:
    """Compute in the full precision of each dtype, in this process, on every device."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
