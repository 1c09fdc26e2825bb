"""Compile the card's draw into the folder that TRITON_CACHE_DIR names: a process of its own, not confined.

See `kept_kernels`. It prints, in one line, why kernels are not used; nothing when they are there, or without a card.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from functools import partial
from pathlib import Path

import torch

from p2prl.models.seeded_draw.kept_kernels import NOTE, NOTED


def main(device: str, folder: str) -> None:
    """Compile for a device, try the draw, and leave a note of `triton_answers`."""
    if not torch.cuda.is_available():
        return
    forget_file_type()
    from p2prl.models.seeded_draw import card_draw

    with torch.cuda.device(device):
        if fault := card_draw.fault_on(torch.device(device)):
            sys.stdout.write(fault)
            return
        leave_note(Path(folder))


def forget_file_type() -> None:
    """Have Triton name compiled files as where the program `file` cannot be started, which would tell what Python's
    own file is: part of those names."""
    platform.architecture = partial(platform.architecture, executable="")


def leave_note(folder: Path) -> None:
    """Note what Triton asked programs for, so that `kept_kernels` finds the kernels complete."""
    from triton.backends.nvidia.compiler import get_ptxas_version
    from triton.backends.nvidia.driver import libcuda_dirs
    from triton.runtime.driver import driver

    answers = (libcuda_dirs()[0], get_ptxas_version(driver.active.get_current_target().arch))
    fresh = folder / f"{NOTE}.{os.getpid()}"
    fresh.write_text(json.dumps(dict(zip(NOTED, answers, strict=True))))
    fresh.replace(folder / NOTE)
