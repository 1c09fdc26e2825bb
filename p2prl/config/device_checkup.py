"""Checkup of a compute device: a small model samples completions whose numbers are known, as at the start of a run.

`p2prl doctor` runs it in a process of its own (`confined_checkup.py`). The known numbers (`device_golden.json`) were
computed once, in float32 on a CPU; the policy is one that every machine makes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files as package_files

import torch

from p2prl.errors import P2PRLError
from p2prl.models.engines.registry import build_sampler, choose_engine
from p2prl.models.hardware.device_choice import choose_device, device_class, open_device
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.self_test.golden_creation import make_golden
from p2prl.models.self_test.golden_groups import GOLDEN_FILE
from p2prl.models.self_test.self_test import self_test
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of

KNOWN = "device_golden.json"
"""The known numbers, beside this file."""

_TEMPERATURE = 1.0


def checkup_model() -> RunModel:
    """The small model of the checkup, without weights."""
    loaded = tiny_model("chain4", seed=0)
    layout = layout_of(loaded.model, "float32")
    return read_run_model(
        export_run_files(loaded), layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype="float32"
    )


def known_numbers() -> bytes:
    """What `device_golden.json` holds, computed anew on this machine's CPU."""
    made = make_golden(checkup_model(), temperature=_TEMPERATURE)
    assert made is not None
    return made


def check_device(name: str) -> dict[str, object]:
    """Sample the known completions on a device. `verdict` is `fits`, `noisy` or `wrong`."""
    began = time.monotonic()
    device = choose_device(name)
    model = checkup_model()
    known = package_files("p2prl.config").joinpath(KNOWN)
    model = replace(model, files={**model.files, GOLDEN_FILE: known.read_bytes()})
    sampler = build_sampler(choose_engine("transformers", device), model, device=device, dtype="float32")
    found: dict[str, object] = {"device": device_class(device), "verdict": "fits", "noise": None, "allowed": None}
    tested = self_test(model, sampler, dtype="float32", temperature=_TEMPERATURE)
    if tested is not None:
        found |= {"verdict": tested.verdict.name.lower(), "noise": tested.noise, "allowed": tested.allowed}
        found |= {"tokens": tested.tokens, "differing": tested.differing}
    return {**found, "seconds": round(time.monotonic() - began, 2)}


def torch_facts() -> dict[str, object]:
    """The build of torch, and the cards it sees."""
    cards = (
        [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return {"torch": torch.__version__, "cuda_build": torch.version.cuda, "cards": cards}


def device_findings(name: str, *, when_open: Callable[[], object]) -> dict[str, object]:
    """`torch_facts` and `check_device`, or `error` instead of the latter.

    `when_open` is called between the two steps of a worker: its device is open, and nothing has been computed.
    """
    facts = torch_facts()
    try:
        open_device(name)
        when_open()
        return facts | check_device(name)
    except (P2PRLError, RuntimeError) as error:
        return facts | {"error": str(error)[:400]}
