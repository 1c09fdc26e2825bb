"""The engine benchmark: completions of one length by the product's samplers and by the bare libraries.

All get the same prompts and sample the same number of tokens at temperature 1: transformers' `generate` with a static
cache, and on CUDA with compiled steps, as transformers has it; the transformers sampler, on CUDA with graphs and
without; and on CUDA, where it is installed, vLLM with its own sampling and the sampler on it. Sides alternate, and
medians count: of processor time on a CPU, of wall time elsewhere. The row with random lengths is sampled as a volunteer
does it: groups of eight, submitted when its `Agent` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from p2prl.bench.device_time import CPU, Spent, median, timed
from p2prl.bench.engine.bare_vllm import BARE_VLLM, BareVllm, start_vllm
from p2prl.bench.engine.random_lengths import LengthsBenchConfig, slots_at_work
from p2prl.bench.random_models import CONTEXT, SHAPES, VOCABULARY, random_model
from p2prl.errors import require
from p2prl.models.engines.start_stages import stages_told
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.sampler_port import GenerationRequest, Sampler
from p2prl.models.sampling import sample_all
from p2prl.models.seeded_draw.draw import draw
from p2prl.models.weights.layout import TORCH_DTYPES, layout_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    vllm: bool = False
    """Adds vLLM, which is to be installed; it starts in half a minute or more, twice."""
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
    """Speed over that of the library it is built on, alone in the same run: by processor time on a CPU, by wall time
    elsewhere."""
    noise_of_step: float | None = None
    """Share of a decoding step spent on the seeded draw, by the same clock."""
    slots_at_work: float | None = None
    """With random lengths: tokens over steps times the most completions in flight at once."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One engine, and how it samples completions of prompts."""

    engine: str
    bare: str
    """Engine that it is compared with; itself for a bare library."""
    sample: Callable[[Tensor], None]


def run_engine_bench(
    config: EngineBenchConfig, *, on_progress: Callable[[str, float], None] | None = None
) -> list[EngineRow]:
    """Rows by model, batch size and engine, a bare library before what is built on it; then random lengths."""
    rows: list[EngineRow] = []
    for number, name in enumerate(config.models):

        def tell(text: str, share: float, name: str = name, number: int = number) -> None:
            if on_progress is not None:
                on_progress(f"{name}, {text}", (number + share) / len(config.models))

        samplers = _samplers(name, config)
        sides = _sides(samplers, name, config, tell)
        for place, batch in enumerate(config.batches):
            tell(f"{batch} rows", place / (len(config.batches) + 1))
            rows += _compared(sides, name, batch, config)
        if config.lengths is not None and number == 0:
            tell("random lengths", 0.75)
            rows.append(_with_random_lengths(next(iter(samplers.values())), name, config, config.lengths))
    return rows


def _model(name: str, config: EngineBenchConfig) -> PreTrainedModel:
    return random_model(name, vocabulary=config.vocabulary, dtype=config.dtype, device=config.device, seed=config.seed)


def _samplers(name: str, config: EngineBenchConfig) -> dict[str, Sampler]:
    """The transformers samplers by what they are called, each with a model of its own, whose attention it changes."""

    def build(*, capture: bool) -> Sampler:
        model = _model(name, config)
        return TransformersSampler(PolicyModel(model, layout_of(model, config.dtype)), capture=capture)

    if config.device.type != "cuda":
        return {"transformers": build(capture=False)}
    return {"transformers": build(capture=True), "transformers, no graphs": build(capture=False)}


def _sides(
    samplers: Mapping[str, Sampler], name: str, config: EngineBenchConfig, tell: Callable[[str, float], None]
) -> list[_Side]:
    bare = _model(name, config)
    sides = [_Side("generate", "generate", lambda prompts: _generate(bare, prompts.to(config.device), config))]
    ours = {engine: (sampler, "generate") for engine, sampler in samplers.items()}
    if config.vllm:
        with stages_told(lambda text: tell(text, 0.0)):
            vllm = start_vllm(
                bare, device=config.device, dtype=config.dtype, context=_context(config), rows=max(config.batches)
            )
        sides.append(_Side(BARE_VLLM, BARE_VLLM, lambda prompts: _sample_bare(vllm.bare, prompts, config.tokens)))
        ours["vllm"] = vllm.sampler, BARE_VLLM
    for engine, (sampler, of) in ours.items():
        sides.append(_Side(engine, of, partial(_sample, sampler, tokens=config.tokens)))
    return sides


def _context(config: EngineBenchConfig) -> int:
    return config.prompt_tokens + config.tokens


def _compared(sides: Sequence[_Side], name: str, batch: int, config: EngineBenchConfig) -> list[EngineRow]:
    generator = torch.Generator().manual_seed(config.seed)
    prompts = torch.randint(0, config.vocabulary, (batch, config.prompt_tokens), generator=generator)
    times = _alternating([partial(side.sample, prompts) for side in sides], config.repeats, config.device)
    spent = dict(zip([side.engine for side in sides], times, strict=True))
    draw_s = _draw_s(batch, config)
    rows = []
    for side in sides:
        own = spent[side.engine]
        is_bare = side.bare == side.engine
        row = EngineRow(
            engine=side.engine,
            model=name,
            dtype=config.dtype,
            batch=batch,
            of_bare=spent[side.bare].on(config.device) / own.on(config.device),
            noise_of_step=None if is_bare else draw_s / (own.on(config.device) / config.tokens),
            **_speeds(batch * config.tokens, own),
        )
        rows.append(row)
    return rows


def _speeds(tokens: int, spent: Spent) -> dict[str, Any]:
    return {"tokens_per_cpu_s": tokens / spent.cpu_s, "tokens_per_s": tokens / spent.wall_s}


def _alternating(sides: Sequence[Callable[[], None]], repeats: int, device: torch.device) -> list[Spent]:
    """Medians by side; a first round, which allocates and compiles, does not count."""
    rounds = [[timed(side, device) for side in sides] for _ in range(repeats + 1)]
    return [median(times) for times in zip(*rounds[1:], strict=True)]


def _generate(model: PreTrainedModel, prompts: Tensor, config: EngineBenchConfig) -> None:
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


def _requests(prompts: Tensor, tokens: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            prompt_ids=tuple(prompt), seed=number, max_new_tokens=tokens, temperature=1.0, stop_ids=frozenset()
        )
        for number, prompt in enumerate(prompts.tolist())
    ]


def _sample(sampler: Sampler, prompts: Tensor, *, tokens: int) -> None:
    made = sample_all(sampler, _requests(prompts, tokens))
    assert all(len(generation.token_ids) == tokens for generation in made)


def _sample_bare(vllm: BareVllm, prompts: Tensor, tokens: int) -> None:
    assert vllm.sample(_requests(prompts, tokens)) == prompts.shape[0] * tokens


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
