"""Times short trainings of a model's first layers by each plan of ranks, in a process of its own."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

from p2prl.errors import ConfigError
from p2prl.learner.training.local_update_engine import LocalEngine
from p2prl.learner.training.memory_config import weight_dtype
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.learner.training.update_engine import EngineSettings, UpdateEngine
from p2prl.models.base_model.attention import Attention, use_attention
from p2prl.models.base_model.local_base import load_policy
from p2prl.models.hardware.device_choice import use_threads
from p2prl.models.weights.layout import TORCH_DTYPES
from p2prl.planning.rank_plans import Probe, Timing, profile_timings

if TYPE_CHECKING:
    from p2prl.ranks.processes import RankProcesses

BUDGET_S = 60.0
"""Of a profile, beside the start of processes. Plans that are not begun by then are not chosen."""

_REPEATS = 3
"""Timings of each training, of which the shortest counts: other programs only add time. Another of each model
comes before."""

_LEARNING_RATE = 1e-9
_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A model, and the settings that it is trained with here."""

    model: Path
    """Directory of its first weights."""
    settings: EngineSettings
    attention: Attention
    threads: int
    """Of all ranks together."""

    @property
    def dtype(self) -> str:
        """Type of the weights in training."""
        return weight_dtype(self.settings.precision)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """What a series of trainings took."""

    probes: list[Probe]
    seconds: float
    """Of everything, the start of processes included."""


def profile(host: Host, plans: Iterable[ParallelConfig], *, row_tokens: int, budget_s: float = BUDGET_S) -> Timed:
    """Time every plan that the model can be trained by, and begin none after `budget_s` seconds of it."""
    layers = int(transformers.AutoConfig.from_pretrained(host.model).get_text_config().num_hidden_layers)
    series = [probes for plan in plans if (probes := profile_timings(plan, layers=layers, row_tokens=row_tokens))]
    return time_series(host, series, budget_s=budget_s)


def time_series(host: Host, series: Sequence[Sequence[Timing]], *, budget_s: float) -> Timed:
    """Time series of trainings, each by one plan of ranks, in a new process: the caller's stays as it is."""
    began = time.monotonic()
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        probes = pool.submit(_timed, host, [list(each) for each in series], budget_s).result()
    return Timed(probes=probes, seconds=time.monotonic() - began)


def _timed(host: Host, series: list[list[Timing]], budget_s: float) -> list[Probe]:
    probes: list[Probe] = []
    left_s = budget_s
    with tempfile.TemporaryDirectory(prefix="p2prl-profile-") as folder:
        shallow = _Shallow(host, Path(folder))
        for ranks, several in groupby(series, key=lambda each: each[0].plan.parallel.ranks):
            if left_s <= 0.0:
                break
            with _meeting(ranks, host.threads) as met:
                for timings in several:
                    began = time.monotonic()
                    if left_s > 0.0:
                        with suppress(ConfigError):  # the model cannot be shared like this
                            probes += _probes(host, shallow, met, timings)
                    left_s -= time.monotonic() - began
    return probes


class _Shallow:
    """Directories of the model with fewer layers and random weights."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._host, self._folder = host, folder

    def directory(self, layers: int) -> Path:
        """One with this many layers."""
        place = self._folder / str(layers)
        if not place.exists():
            source = self._host.model
            config: Any = transformers.AutoConfig.from_pretrained(source, local_files_only=True)
            text = config.get_text_config()
            text.num_hidden_layers = layers
            if getattr(text, "layer_types", None):
                text.layer_types = text.layer_types[:layers]
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=TORCH_DTYPES[self._host.dtype])
            model.save_pretrained(place)
            for file in source.iterdir():
                if file.is_file() and file.suffix != ".safetensors" and not (place / file.name).exists():
                    shutil.copyfile(file, place / file.name)  # the tokenizer, which ranks load as a learner does
        return place


@contextmanager
def _meeting(ranks: int, threads: int) -> Iterator[RankProcesses | None]:
    """This many ranks, and this one among them; None for it alone."""
    each = max(1, threads // ranks)
    use_threads(each)
    if ranks == 1:
        yield None
        return
    from p2prl.ranks import commands  # here: a process alone needs no collectives
    from p2prl.ranks.processes import RankProcesses, meeting_folder

    met = RankProcesses(commands.Meeting(ranks=ranks, folder=str(meeting_folder()), threads=each))
    try:
        yield met
    finally:
        met.group.close()
        met.close()


def _probes(host: Host, shallow: _Shallow, met: RankProcesses | None, timings: list[Timing]) -> list[Probe]:
    """The shortest of a few updates of each, which are of one plan of ranks."""
    found = []
    for layers, several in groupby(timings, key=lambda each: each.work.layers):
        engine = _engine(host, shallow.directory(layers), met, timings[0].plan.parallel)
        updates = [(timing, _update(engine, timing)) for timing in several]
        updates[0][1]()
        for timing, update in updates:
            seconds = min(update() for _ in range(_REPEATS))
            found.append(Probe(plan=timing.plan, work=timing.work, seconds=seconds))
    return found


def _engine(host: Host, directory: Path, met: RankProcesses | None, parallel: ParallelConfig) -> UpdateEngine:
    model = load_policy(directory, directory, None, device=_CPU, dtype=host.dtype).model
    use_attention(model, host.attention)
    if met is None:
        return LocalEngine(model, host.settings)
    from p2prl.ranks import commands
    from p2prl.ranks.sharded_engine import ShardedEngine

    load = commands.Load(
        weights=str(directory),
        first=str(directory),
        lora=None,
        dtype=host.dtype,
        attention=host.attention,
        parallel=parallel,
        settings=host.settings,
    )
    return ShardedEngine(model, met, load)


def _update(engine: UpdateEngine, timing: Timing) -> Callable[[], float]:
    """A function that takes one step and returns its seconds."""
    work, plan = timing.work, timing.plan
    rng = np.random.default_rng(0)
    words = engine.model.config.get_text_config().vocab_size
    tokens = rng.integers(0, words, (work.rows, work.row_tokens)).astype("<u4")
    rows = [(row[:1], row[1:]) for row in tokens]
    rule = MicroBatchRule(tokens=plan.tokens, checkpointing=plan.checkpointing, plan=plan.parallel.name)

    def update() -> float:
        began = time.perf_counter()
        engine.forget()
        found = engine.score(rows, rule).logprobs_NT
        engine.push(torch.full_like(found, 1.0 / found.numel()))
        engine.clip(1.0)
        engine.step(_LEARNING_RATE, value_factor=1.0, number=1)
        return time.perf_counter() - began

    return update
