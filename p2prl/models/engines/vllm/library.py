"""vLLM as a library in this process: its import, its environment, its errors, and what it must not change here."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from p2prl.errors import ConfigError, MachineError
from p2prl.models.engines.start_stages import tell_stage

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the draw and the weights are shared with this process
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it would be compiled at the start, and no token of ours is drawn by it
    "TRITON_F32_DEFAULT": "ieee",  # or attention in float32 rounds to 10 bits, and its tokens do not replay
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",  # listen on this machine only
    "KMP_BLOCKTIME": "0",  # Intel's OpenMP would spin between steps
}
"""Read by vLLM from the environment alone. What the user set stays, except for the first."""

VLLM_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions of vLLM on a model or a machine that it cannot handle."""


def import_vllm() -> Any:
    """The library. `ConfigError` when it is not installed."""
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())  # it logs before it reads the level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of vLLM about its own code
            import vllm
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision of another torch
        raise ConfigError(
            f"vLLM cannot be imported: {error}",
            remedy="Install the extra `vllm` (docs/volunteers.md), or join with --engine transformers.",
        ) from error
    return vllm


def let_modules_be_scanned() -> None:
    """Give llvmlite's library, once it is imported, a `__dict__` that is one.

    On a CPU vLLM reads that of every object in every module, and llvmlite answers any name with a C function.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    if ffi is not None:
        ffi.lib._fntab.setdefault("__dict__", {})


def require_exact_products(device: torch.device) -> None:
    """`MachineError` where vLLM's attention would round float32: of its kernels only Triton's take float32 on CUDA.

    Also where Triton cannot compile.
    """
    try:
        from p2prl.models.engines.vllm.triton_precision import multiplies_exactly

        is_exact = multiplies_exactly(device)
    except (*VLLM_ERRORS, subprocess.SubprocessError) as error:
        raise MachineError(
            f"Triton, which vLLM computes with, does not work here: {str(error)[:300]}",
            remedy="Join with --engine transformers.",
        ) from error
    if not is_exact:
        raise MachineError(
            "vLLM rounds this run's float32 to 10 bits on this card (TF32), so that its tokens would be rejected",
            remedy="Join with --engine transformers, or unset TRITON_F32_DEFAULT if you have set it.",
        )


@contextmanager
def own_random_state() -> Iterator[None]:
    """Undo that vLLM seeds every generator of the process with a constant."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


@contextmanager
def bars_as_stages() -> Iterator[None]:
    """Keep vLLM's progress bars off the screen, and tell what they say as stages of the start.

    They ignore its log level, and those that pass `disable` themselves ignore TQDM_DISABLE too.
    """
    from tqdm.std import tqdm

    begin = tqdm.__init__

    def begin_hidden(bar: tqdm, iterable: Iterable[object] | None = None, *args: Any, **settings: Any) -> None:
        counted = None if iterable is None else _counted(iterable, settings.get("desc"))
        begin(bar, counted, *args, **settings | {"disable": True})

    tqdm.__init__ = begin_hidden
    try:
        yield
    finally:
        tqdm.__init__ = begin


def _counted(items: Iterable[object], name: str | None) -> Iterator[object]:
    of = f" of {len(items)}" if isinstance(items, Sized) else ""
    for number, item in enumerate(items, 1):
        tell_stage(f"vLLM: {name or 'starting'}, {number}{of}")
        yield item
