"""The small models: their size, their tokenizer, and that they depend on their seed alone."""

from __future__ import annotations

import pytest
import torch

from p2prl.errors import ConfigError
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import flatten, layout_of
from p2prl.tasks.chain4 import CHAIN4, Chain4
from p2prl.tasks.digit_chains import SYMBOLS


def _bytes(seed: int) -> bytearray:
    model = tiny_model(seed=seed).model
    return flatten(model, layout_of(model, "float32"))


def test_chain4_model_size_and_seed() -> None:
    torch.manual_seed(1)
    first = _bytes(7)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == drawn  # the global generator was left alone
    assert _bytes(7) == first
    assert _bytes(8) != first
    assert len(first) == 4 * 59_040


def test_each_symbol_is_one_token() -> None:
    loaded = tiny_model()
    codec = TextCodec(loaded.tokenizer, loaded.model)
    ids = codec.encode(SYMBOLS)
    assert len(ids) == len(SYMBOLS) + 1
    assert len(set(ids)) == len(ids)
    assert codec.decode(ids[1:]) == SYMBOLS
    assert codec.vocabulary == 18 == len(SYMBOLS) + 3
    assert codec.stop_ids == {loaded.tokenizer.eos_token_id}
    assert max(ids) < codec.vocabulary


def test_special_tokens_stay_visible() -> None:
    loaded = tiny_model()
    codec = TextCodec(loaded.tokenizer, loaded.model)
    right = codec.encode("747#7")[1:]
    hidden = (*right[:4], loaded.tokenizer.pad_token_id, right[4])
    assert Chain4().score("3+4*2-7=", codec.decode(right), finished=True).reward == 1.0
    assert Chain4().score("3+4*2-7=", codec.decode(hidden), finished=True).reward == 0.0


def test_prompt_and_completion_fit_the_context() -> None:
    loaded = tiny_model()
    prompt = TextCodec(loaded.tokenizer, loaded.model).encode(Chain4().prompt(0))
    assert len(prompt) == 9
    assert len(prompt) + CHAIN4.max_new_tokens <= loaded.model.config.max_position_embeddings


def test_unknown_task_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        tiny_model("chain5")
    assert "chain4" in caught.value.remedy


def test_encode_all_equals_encode() -> None:
    loaded = tiny_model()
    codec = TextCodec(loaded.tokenizer, loaded.model)
    texts = [Chain4().prompt(seed) for seed in range(20)] + ["", "7", SYMBOLS]
    assert codec.encode_all(texts) == [codec.encode(text) for text in texts]
