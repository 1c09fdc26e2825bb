"""Choose the rows of a data set that are held out for evaluation, and refuse those that are trained on as well."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from p2prl.errors import ConfigError
from p2prl.tasks.data.data_plan import DataPlan
from p2prl.tasks.data.prompts import Prompt, normal_text
from p2prl.tasks.data.split_packer import SplitPacker, number_of
from p2prl.tasks.scorers.row_sources import is_generated


def is_held_out(prompt: Prompt, share: float) -> bool:
    """Whether a row is of the share of all that is held out, by the hash of its prompt: equal prompts go together."""
    return number_of(normal_text(prompt)) < share * 2.0**64


class Splits(Protocol):
    """The rows of one data set, by what they are for."""

    @property
    def plan(self) -> DataPlan: ...

    @property
    def training(self) -> SplitPacker: ...

    @property
    def held_out(self) -> SplitPacker | None: ...


def refuse_overlap(data_sets: Sequence[Splits]) -> None:
    """`ConfigError` when a held-out prompt of any data set is trained on by any of them."""
    for plan, held_out in ((each.plan, each.held_out) for each in data_sets if each.held_out is not None):
        for training in (each.training for each in data_sets):
            count, row, match = held_out.overlap(training)
            if count:
                more = f", and {count - 1:,} more like it" if count > 1 else ""
                raise ConfigError(
                    f"{row}: this evaluation prompt is also trained on: {match}{more}",
                    remedy=overlap_remedy(plan.held_out),
                )


def overlap_remedy(held_out: Path | None) -> str:
    """What to do about rows of `held_out` that are trained on."""
    if held_out is None or not is_generated(str(held_out)):
        return "Remove it from one of the files: an evaluation on trained prompts measures memory."
    # Row n of reasoning-gym follows from seed + n: seeds 1 and 2 share all rows but one.
    return "Hold out rows with --eval-split; or give --eval a seed that is larger by the number of rows to train on."
