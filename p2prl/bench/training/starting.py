"""What every benchmark that trains starts from: a legal range of seeds, and warm starts in a folder one can write to.

Apart from `warm.py`, because a line changed there would count as other code behind every result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from p2prl.bench.training.environments import Environment
from p2prl.bench.training.warm_start import warm_weights
from p2prl.errors import MachineError, require

SEED_LIMIT = 1 << 20
"""Seeds lie below: with more, the prompts of training would run into those of the evaluations."""

UNWRITABLE = "Give --out a folder that can be written, on a disk with room."
"""Remedy where results cannot be kept."""


def require_first_seed(first: int, seeds: int) -> None:
    """Raise ConfigError, with the legal range, unless the `seeds` seeds from `first` on may all be trained with."""
    highest = SEED_LIMIT - seeds
    require("seed", first, 0 <= first <= highest, f"0 to {highest}")


def warm_start_of(
    subject: Environment, seeds: Sequence[int], out: Path, *, on_step: Callable[[float], None] | None = None
) -> Tensor:
    """Weights (M, W) of `warm_weights`, kept under `out`. Raises MachineError where nothing can be written there."""
    try:
        return warm_weights(subject, seeds, out / "warm", on_step=on_step)
    except OSError as error:
        raise MachineError(f"cannot write to {out}: {error.strerror}", remedy=UNWRITABLE) from error
