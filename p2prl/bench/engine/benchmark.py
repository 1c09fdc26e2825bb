"""The engine benchmark: completions of one length by the product's sampler and by transformers' `generate`.

All get the same prompts and sample the same number of tokens at temperature 1; `generate` with a static cache, and on
CUDA with compiled steps, as transformers has it. On CUDA the product samples with CUDA graphs, and without. Sides
alternate, and medians count: of processor time on a CPU, of wall time elsewhere. The row with random lengths is sampled
as a volunteer does it: groups of eight, submitted when its `Agent` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from p2prl.bench.device_time import CPU, Spent, median, timed
from p2prl.bench.engine.random_lengths import LengthsBenchConfig, slots_at_work
from p2prl.bench.random_models import CONTEXT, SHAPES, VOCABULARY, random_model
from p2prl.errors import require
from p2prl.models.policy_model import PolicyModel
from p2prl.models.sampler_port import GenerationRequest, Sampler
from p2prl.models.sampling import sample_all
from p2prl.models.seeded_draw.draw import draw
from p2prl.models.transformers_sampler import TransformersSampler
from p2prl.models.weight_layout import TORCH_DTYPES, layout_of


@dataclass(frozen=True, kw_only=True)
class EngineBenchConfig:
    """Models, batches and lengths to measure."""

    models: tuple[str, ...] = ("29m", "123m")
    batches: tuple[int, ...] = (8, 16, 32)
    vocabulary: int = VOCABULARY
    prompt_tokens: int = 32
    tokens: int = 64
    repeats: int = 5
    dtype: str = "float32"
    device: torch.device = CPU
    compiled: bool = True
    """Whether `generate` may compile its steps. It does so on CUDA, for a minute or more a batch size."""
    lengths: LengthsBenchConfig | None = None
    """Adds a row with random lengths, of the first model."""
    seed: int = 0

    def __post_init__(self) -> None:
        require("models", self.models, all(name in SHAPES for name in self.models), " or ".join(SHAPES))
        require("batches", self.batches, all(1 <= batch <= 256 for batch in self.batches), "1 to 256 rows each")
        size = self.prompt_tokens + self.tokens
        require("tokens", self.tokens, self.tokens >= 2 and size <= CONTEXT, f"2 to {CONTEXT}, prompt included")
        require("prompt_tokens", self.prompt_tokens, self.prompt_tokens >= 1, "1 or more")
        require("repeats", self.repeats, 1 <= self.repeats <= 100, "1 to 100")
        require("dtype", self.dtype, self.dtype in TORCH_DTYPES, " or ".join(TORCH_DTYPES))


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    """One engine, model and batch size."""

    engine: str
    model: str
    dtype: str
    batch: int
    tokens_per_cpu_s: float
    """Of the processor, which on a GPU prepares the work and waits."""
    tokens_per_s: float
    """Of wall time."""
    of_bare: float | None = None
    """Speed over that of the bare library, in the same run: by processor time on a CPU, by wall time elsewhere."""
    noise_of_step: float | None = None
    """Share of a decoding step spent on the seeded draw, by the same clock."""
    slots_at_work: float | None = None
    """With random lengths: tokens over steps times the most completions in flight at once."""


def run_engine_bench(
    config: EngineBenchConfig, *, on_progress: Callable[[str, float], None] | None = None
) -> list[EngineRow]:
    """Rows by model and batch size: the bare library, then the product's engine; then the one with random lengths."""
    rows: list[EngineRow] = []
    for number, name in enumerate(config.models):
        samplers = _samplers(_model(name, config), config)
        # Its own model: the sampler changes the attention of the one it has.
        bare = _model(name, config)
        for place, batch in enumerate(config.batches):
            if on_progress is not None:
                done = number + place / (len(config.batches) + 1)
                on_progress(f"{name}, {batch} rows", done / len(config.models))
            rows += _compared(samplers, bare, name, batch, config)
        del bare
        if config.lengths is not None and number == 0:
            if on_progress is not None:
                on_progress(f"{name}, random lengths", (number + 0.75) / len(config.models))
            rows.append(_with_random_lengths(next(iter(samplers.values())), name, config, config.lengths))
    return rows


def _model(name: str, config: EngineBenchConfig) -> Any:
    return random_model(name, vocabulary=config.vocabulary, dtype=config.dtype, device=config.device, seed=config.seed)


def _samplers(model: Any, config: EngineBenchConfig) -> dict[str, Sampler]:
    """The product's samplers by their names in the table, the one it uses first."""
    policy = PolicyModel(model, layout_of(model, config.dtype))
    name = policy.engine_class.engine
    samplers: dict[str, Sampler] = {name: TransformersSampler(policy)}
    if config.device.type == "cuda":
        samplers[f"{name}, no graphs"] = TransformersSampler(policy, capture=False)
    return samplers


def _compared(
    samplers: Mapping[str, Sampler], bare: Any, name: str, batch: int, config: EngineBenchConfig
) -> list[EngineRow]:
    generator = torch.Generator().manual_seed(config.seed)
    prompts = torch.randint(0, config.vocabulary, (batch, config.prompt_tokens), generator=generator)
    on_device = prompts.to(config.device)
    sides: list[Callable[[], None]] = [
        lambda: _generate(bare, on_device, config),
        *(partial(_sample, sampler, prompts, config.tokens) for sampler in samplers.values()),
    ]
    bare_spent, *spent = _alternating(sides, config.repeats, config.device)
    tokens = batch * config.tokens
    row = EngineRow(
        engine="generate", model=name, dtype=config.dtype, batch=batch, of_bare=1.0, **_speeds(tokens, bare_spent)
    )
    draw_s = _draw_s(batch, config)
    return [
        row,
        *(
            replace(
                row,
                engine=engine,
                of_bare=bare_spent.on(config.device) / each.on(config.device),
                noise_of_step=draw_s * config.tokens / each.on(config.device),
                **_speeds(tokens, each),
            )
            for engine, each in zip(samplers, spent, strict=True)
        ),
    ]


def _speeds(tokens: int, spent: Spent) -> dict[str, Any]:
    return {"tokens_per_cpu_s": tokens / spent.cpu_s, "tokens_per_s": tokens / spent.wall_s}


def _alternating(sides: Sequence[Callable[[], None]], repeats: int, device: torch.device) -> list[Spent]:
    """Medians by side; a first round, which allocates and compiles, does not count."""
    rounds = [[timed(side, device) for side in sides] for _ in range(repeats + 1)]
    return [median(times) for times in zip(*rounds[1:], strict=True)]


def _generate(model: Any, prompts: Tensor, config: EngineBenchConfig) -> None:
    made = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        max_new_tokens=config.tokens,
        min_new_tokens=None,
        cache_implementation="static",
        disable_compile=not config.compiled,
    )
    assert made.shape[1] == prompts.shape[1] + config.tokens


def _sample(sampler: Sampler, prompts: Tensor, tokens: int) -> None:
    requests = [
        GenerationRequest(
            prompt_ids=tuple(prompt), seed=number, max_new_tokens=tokens, temperature=1.0, stop_ids=frozenset()
        )
        for number, prompt in enumerate(prompts.tolist())
    ]
    made = sample_all(sampler, requests)
    assert all(len(generation.token_ids) == tokens for generation in made)


def _draw_s(batch: int, config: EngineBenchConfig) -> float:
    """Median time of the draw for one step, without log-probs, from logits on the device."""
    generator = torch.Generator().manual_seed(config.seed)
    logits = torch.randn(batch, config.vocabulary, generator=generator).to(config.device)
    temperatures, places = torch.ones(batch), torch.arange(batch)
    draws = [lambda: _discard(draw(logits, temperatures, places, places))]
    (spent,) = _alternating(draws, 5 * config.repeats, config.device)
    return spent.on(config.device)


def _discard(_: Tensor) -> None:
    pass


def _with_random_lengths(
    sampler: Sampler, name: str, config: EngineBenchConfig, lengths: LengthsBenchConfig
) -> EngineRow:
    work = slots_at_work(
        sampler,
        lengths,
        vocabulary=config.vocabulary,
        prompt_tokens=config.prompt_tokens,
        seed=config.seed,
        device=config.device,
    )
    return EngineRow(
        engine=sampler.engine_class.engine,
        model=name,
        dtype=config.dtype,
        batch=lengths.batch,
        **_speeds(work.tokens, work.spent),
        slots_at_work=work.share,
    )
