"""Processor time of replaying groups over that of generating them, with the product's sampler and scorer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from p2prl.bench.random_models import VOCABULARY, random_model
from p2prl.errors import require
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.weights.layout import layout_of

REPLAY_BOUND = 0.35
"""Wanted: replay costs at most this part of generating."""

DEMANDED = ("123m", 16)
"""Model and batch at which it must."""

MODELS = ("29m", "123m")
_GROUP_SIZE, _PROMPT_TOKENS = 8, 32


@dataclass(frozen=True, kw_only=True)
class ReplayCostConfig:
    """Models and sizes."""

    models: tuple[str, ...] = MODELS
    batches: tuple[int, ...] = (16,)
    """Rows decoded at once; the same rows are then replayed."""
    new_tokens: int = 64
    repeats: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        require("models", ", ".join(self.models), set(self.models) <= set(MODELS), f"among {', '.join(MODELS)}")
        require("batches", self.batches, all(1 <= batch <= 64 for batch in self.batches), "1 to 64 rows each")
        require("new_tokens", self.new_tokens, 1 <= self.new_tokens <= 4096, "1 to 4096")
        require("repeats", self.repeats, 1 <= self.repeats <= 100, "1 to 100")


@dataclass(frozen=True, kw_only=True)
class ReplayCost:
    """One model at one batch size, medians of processor seconds."""

    model: str
    parameters: int
    batch: int
    tokens: int
    generating_s: float
    replaying_s: float
    of_generating: float

    @property
    def met(self) -> bool:
        """Whether replay is cheap enough."""
        return self.of_generating <= REPLAY_BOUND

    @property
    def is_demanded(self) -> bool:
        """Whether the bound is a demand here: smaller models and batches are shown beside it."""
        return (self.model, self.batch) == DEMANDED


def measure_replay_cost(config: ReplayCostConfig, on_progress: Callable[[str, float], None]) -> list[ReplayCost]:
    """Costs by model and batch."""
    costs = []
    for number, name in enumerate(config.models):
        model = random_model(name, seed=config.seed)
        policy = PolicyModel(model, layout_of(model, "float32"))
        sampler, scorer = TransformersSampler(policy), TransformersScorer(policy)
        for batch in config.batches:
            on_progress(f"{name}, {batch} rows", number / len(config.models))
            requests = _requests(batch, config)
            generating, replaying = [], []
            for _ in range(config.repeats):
                spent, made = _timed(partial(sample_all, sampler, requests))
                generating.append(spent)
                spent, _ = _timed(partial(scorer.replay, requests, [generation.token_ids for generation in made]))
                replaying.append(spent)
            generated, replayed = statistics.median(generating), statistics.median(replaying)
            costs.append(
                ReplayCost(
                    model=name,
                    parameters=layout_of(model, "float32").parameters,
                    batch=batch,
                    tokens=batch * config.new_tokens,
                    generating_s=generated,
                    replaying_s=replayed,
                    of_generating=replayed / generated,
                )
            )
    return costs


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def _requests(batch: int, config: ReplayCostConfig) -> list[GenerationRequest]:
    """Rows in groups that share a prompt, all decoded to the full length."""
    generator = torch.Generator().manual_seed(config.seed)
    requests = []
    for row in range(batch):
        if row % _GROUP_SIZE == 0:
            prompt = tuple(torch.randint(0, VOCABULARY, (_PROMPT_TOKENS,), generator=generator).tolist())
        requests.append(
            GenerationRequest(
                prompt_ids=prompt,
                seed=config.seed * 1000 + row,
                max_new_tokens=config.new_tokens,
                temperature=1.0,
                stop_ids=frozenset(),
            )
        )
    return requests
