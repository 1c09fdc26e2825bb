"""The warm start: it reaches the benchmark's accuracy, and the same seed gives the same result."""

from __future__ import annotations

import pytest

from p2prl.errors import ConfigError
from p2prl.models.policy_model import PolicyModel
from p2prl.models.pretrained import LoadedModel
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.text_codec import TextCodec
from p2prl.models.tiny_models import tiny_model
from p2prl.models.transformers_sampler import TransformersSampler
from p2prl.models.warm_start import WarmstartConfig, warm_start
from p2prl.models.weight_layout import flatten, layout_of
from p2prl.tasks.chain4 import CHAIN4, demonstration

SHORT = WarmstartConfig(steps=4, batch=16, warmup_steps=1)


def accuracy(loaded: LoadedModel, *, prompts: int, temperature: float = 1.0) -> float:
    """Share of fresh prompts that one sampled completion each gets right."""
    sampler = TransformersSampler(PolicyModel(loaded.model, layout_of(loaded.model, "float32")))
    codec, task, first = TextCodec(loaded.tokenizer, loaded.model), CHAIN4.task, 1 << 62  # far from training prompts
    texts = [task.prompt(first + i) for i in range(prompts)]
    requests = [
        GenerationRequest(
            prompt_ids=codec.encode(text),
            seed=first + i,
            max_new_tokens=CHAIN4.max_new_tokens,
            temperature=temperature,
            stop_ids=codec.stop_ids,
        )
        for i, text in enumerate(texts)
    ]
    right = 0.0
    for text, made in zip(texts, sample_all(sampler, requests), strict=True):
        ids = made.token_ids[:-1] if made.finished else made.token_ids
        right += task.score(text, codec.decode(ids), made.finished).reward
    return right / prompts


def _trained(seed: int) -> bytes:
    loaded = tiny_model()
    warm_start(loaded, demonstration, seed=seed, config=SHORT)
    return bytes(flatten(loaded.model, layout_of(loaded.model, "float32")))


def test_seed_fixes_the_weights() -> None:
    assert _trained(1) == _trained(1)
    assert _trained(1) != _trained(2)


def test_recipe_ends_at_the_benchmarks_accuracy() -> None:
    loaded = tiny_model()
    steps: list[int] = []
    losses: list[float] = []

    def note(step: int, loss: float) -> None:
        steps.append(step)
        losses.append(loss)

    warm_start(loaded, demonstration, on_step=note)
    assert steps == list(range(1, WarmstartConfig().steps + 1))
    assert losses[-1] < 0.5 * losses[0]
    assert not loaded.model.training
    sampled = accuracy(loaded, prompts=2048)
    greedy = accuracy(loaded, prompts=2048, temperature=1e-3)
    assert 0.30 <= sampled <= 0.42
    assert sampled < greedy <= 0.60


def test_untrained_model_is_right_by_accident_only() -> None:
    assert accuracy(tiny_model(), prompts=512) < 0.05


def test_learning_rate_schedule() -> None:
    config = WarmstartConfig(steps=100, warmup_steps=10, learning_rate=1.0)
    rates = [config.rate_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == rates[10] == 1.0
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"batch": 0}, {"learning_rate": 0.0}, {"warmup_steps": -1}])
def test_empty_recipes_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        WarmstartConfig(**bad)
