"""The plan that a short profile chooses for a host, beside every plan measured on the whole model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.update_engine import EngineSettings
from p2prl.models.small_models.tiny_models import character_tokenizer
from p2prl.planning.rank_plans import Timing, Work, fitted, plans_within, rank_plans
from p2prl.planning.rank_profile import Host, profile, time_series

_RANKS = 2
_ROWS = 8
_ROW_TOKENS = 64
_SWEEP_S = 600.0

MODELS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "1.1M, 6 layers": {"hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 6, "vocab_size": 512},
        "3.0M, 4 layers": {"hidden_size": 192, "intermediate_size": 576, "num_hidden_layers": 4, "vocab_size": 6144},
        "6.2M, 8 layers": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8, "vocab_size": 1024},
    }
)
"""Qwen2 shapes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostPlanRow:
    """One model."""

    model: str
    chosen: str
    """The plan of the least predicted time."""
    predicted: float
    """Its seconds an update, by the profile."""
    seconds: float
    """Its seconds an update, measured."""
    best: str
    """The plan of the least measured time."""
    of_best: float
    """Seconds of the chosen plan over those of the best."""
    plans: int
    """Plans that were measured."""
    profile_s: float


def run_host_plan_bench(on_progress: Callable[[str, float], None] = lambda *_: None) -> Iterator[HostPlanRow]:
    """A row for each model."""
    for number, (name, shape) in enumerate(MODELS.items()):
        on_progress(name, number / len(MODELS))
        with tempfile.TemporaryDirectory(prefix="p2prl-plans-") as folder:
            yield _row(name, _host(shape, Path(folder)), layers=shape["num_hidden_layers"])


def _host(shape: Mapping[str, int], directory: Path) -> Host:
    config = Qwen2Config(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, **shape)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(directory)
    character_tokenizer("01").save_pretrained(directory)  # ranks load a model as a learner does
    settings = EngineSettings(temperature=1.0, optimizer=OptimizerConfig())
    return Host(model=directory, settings=settings, attention="sdpa", threads=_RANKS)


def _row(name: str, host: Host, *, layers: int) -> HostPlanRow:
    work = Work(layers=layers, rows=_ROWS, row_tokens=_ROW_TOKENS)
    parallels = rank_plans(_RANKS)
    found = profile(host, parallels, row_tokens=_ROW_TOKENS)
    space = plans_within(parallels, lambda *_: _ROWS * _ROW_TOKENS, row_tokens=_ROW_TOKENS)
    order = fitted(found.probes, space, work)
    timings = [Timing(plan=plan, work=work) for plan in space]
    series = [list(each) for _, each in groupby(timings, key=lambda each: each.plan.parallel)]
    measured = {probe.plan: probe.seconds for probe in time_series(host, series, budget_s=_SWEEP_S).probes}
    chosen, best = order[0], min(measured, key=lambda plan: measured[plan])
    return HostPlanRow(
        model=name,
        chosen=chosen.plan.description,
        predicted=chosen.seconds,
        seconds=measured[chosen.plan],
        best=best.description,
        of_best=measured[chosen.plan] / measured[best],
        plans=len(measured),
        profile_s=found.seconds,
    )


def as_markdown(rows: list[HostPlanRow]) -> str:
    """Rows as a Markdown table."""
    titles = ("model", "chosen", "predicted, s", "measured, s", "best of all", "of the best", "plans", "profile, s")
    lines = [f"| {' | '.join(titles)} |", "|---|---|---:|---:|---|---:|---:|---:|"]
    lines += [
        f"| {row.model} | {row.chosen} | {row.predicted:.3f} | {row.seconds:.3f} | {row.best} | {row.of_best:.2f}"
        f" | {row.plans} | {row.profile_s:.0f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
