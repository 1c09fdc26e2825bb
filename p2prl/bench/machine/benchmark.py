"""Measure how fast this machine samples models of known sizes, and say which sizes fit. No key, no network, no run.

The models have random weights, so nothing is downloaded; speed does not depend on the values of weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psutil
import torch

from p2prl.bench.random_models import SHAPES, VOCABULARY, random_model
from p2prl.errors import require
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.sampler_port import GenerationRequest, Sampler
from p2prl.models.sampling import sample_all
from p2prl.models.weights.layout import TORCH_DTYPES, layout_of
from p2prl.planning.card_speeds import WORK_SHARE
from p2prl.scoreboard.ledger.credit import credit_of

DAY_S = 86_400.0

SIZES = (0.5e9, 1.5e9, 3e9, 7e9, 14e9, 32e9)
"""Parameters of the models people post-train."""

BYTES_PER_PARAMETER = {"float32": 4, "bfloat16": 2, "float16": 2}

_WARM_TOKENS = 4


@dataclass(frozen=True, kw_only=True)
class MachineBenchConfig:
    """What to measure."""

    models: tuple[str, ...] = ("29m", "123m")
    device: torch.device
    dtype: str = "float32"
    batch: int = 16
    prompt_tokens: int = 32
    tokens: int = 64
    vocabulary: int = VOCABULARY
    seed: int = 0

    def __post_init__(self) -> None:
        known = bool(self.models) and all(name in SHAPES for name in self.models)
        require("models", ",".join(self.models), known, " or ".join(SHAPES))
        require("dtype", self.dtype, self.dtype in TORCH_DTYPES, " or ".join(TORCH_DTYPES))
        require("batch", self.batch, 1 <= self.batch <= 512, "1 to 512 completions")
        require("tokens", self.tokens, 2 <= self.tokens <= 4096, "2 to 4096")


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedRow:
    """One model's speed."""

    model: str
    parameters: int
    tokens_per_s: float
    credit_per_day: float
    """PetaFLOP of forward work, the leaderboard's unit, if every token is verified."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitRow:
    """Whether a model of a size fits the device's memory."""

    parameters: float
    needs_bytes: int
    fits: bool


def run_machine_bench(
    config: MachineBenchConfig, *, on_progress: Callable[[str, float], None] = lambda *_: None
) -> Iterator[SpeedRow]:
    """A row for each model as soon as it is measured, by the wall clock: this machine's other programs count, as they
    would in a run."""
    for number, name in enumerate(config.models):
        on_progress(f"a model of {name.upper()}", number / len(config.models))
        model = random_model(
            name, vocabulary=config.vocabulary, dtype=config.dtype, device=config.device, seed=config.seed
        )
        layout = layout_of(model, config.dtype)
        sampler = TransformersSampler(PolicyModel(model, layout))
        _sample(sampler, config, _WARM_TOKENS)
        began = time.monotonic()
        tokens = _sample(sampler, config, config.tokens)
        rate = tokens / max(time.monotonic() - began, 1e-9)
        parameters = sum(tensor.numel() for tensor in model.parameters())
        yield speed_row(name, parameters, rate)


def speed_row(model: str, parameters: int, tokens_per_s: float) -> SpeedRow:
    """A row from a measured speed."""
    credit = credit_of(tokens_per_s * DAY_S, parameters)
    return SpeedRow(model=model, parameters=parameters, tokens_per_s=tokens_per_s, credit_per_day=credit)


def free_memory(device: torch.device) -> int:
    """Bytes that a worker could have on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def fit_rows(memory_bytes: int, dtype: str, sizes: Sequence[float] = SIZES) -> list[FitRow]:
    """Which sizes fit into this much memory of the device."""
    each = BYTES_PER_PARAMETER[dtype] * (1 + WORK_SHARE)
    return [FitRow(parameters=size, needs_bytes=int(size * each), fits=size * each <= memory_bytes) for size in sizes]


def _sample(sampler: Sampler, config: MachineBenchConfig, tokens: int) -> int:
    generator = torch.Generator().manual_seed(config.seed)
    prompts = torch.randint(0, config.vocabulary, (config.batch, config.prompt_tokens), generator=generator)
    requests = [
        GenerationRequest(
            prompt_ids=tuple(prompt), seed=number, max_new_tokens=tokens, temperature=1.0, stop_ids=frozenset()
        )
        for number, prompt in enumerate(prompts.tolist())
    ]
    return sum(len(generation.token_ids) for generation in sample_all(sampler, requests))
