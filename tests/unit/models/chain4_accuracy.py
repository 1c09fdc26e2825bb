"""Measure a model of chain4 on fresh prompts."""

from __future__ import annotations

from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import layout_of
from p2prl.tasks.chain4 import CHAIN4


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
