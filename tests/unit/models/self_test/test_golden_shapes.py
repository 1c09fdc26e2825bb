"""The self-test of sound engines on deep models of every shape, and what older golden groups of such shapes say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.self_test import golden_creation
from p2prl.models.self_test.golden_creation import golden_files, make_golden
from p2prl.models.self_test.golden_groups import GOLDEN_FILE
from p2prl.models.self_test.golden_policy import BY_SIDE, BY_USE
from p2prl.models.self_test.self_test import SelfTest, SelfTestVerdict, self_test
from p2prl.models.small_models.tiny_models import character_tokenizer
from p2prl.models.weights.layout import layout_of
from p2prl.models.weights.lora import add_lora, plan_lora
from p2prl.protocol.lora_spec import LoraSpec

TEMPERATURE = 0.8
CPU = torch.device("cpu")
LAYERS = 12

Change = Callable[[torch.Tensor], torch.Tensor]


def run_of(loaded: LoadedModel, dtype: str, lora: LoraSpec | None = None) -> RunModel:
    layout = layout_of(loaded.model, dtype)
    files = export_run_files(loaded)
    files |= golden_files(files, layout, dtype=dtype, temperature=TEMPERATURE, lora=lora)
    return read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype=dtype, lora=lora)


def outcome_of(run: RunModel, change: Change | None = None) -> SelfTest:
    """The self-test of an engine whose logits are changed."""
    dtype = run.layout.tensors[0].dtype
    policy = PolicyModel(run.build(device=CPU, dtype=dtype), run.layout)
    if change is not None:
        policy.model.lm_head.register_forward_hook(lambda _, __, logits: change(logits))
    result = self_test(run, TransformersSampler(policy), dtype=dtype, temperature=TEMPERATURE)
    assert result is not None
    return result


def deep_llama(vocabulary: int, *, layers: int = LAYERS, head: int = 16, tied: bool = False) -> LoadedModel:
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=256, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=8, head_dim=head, max_position_embeddings=64, eos_token_id=1,
        bos_token_id=0, pad_token_id=2, tie_word_embeddings=tied,
    )  # fmt: skip
    return LoadedModel(model=LlamaForCausalLM(config).eval(), tokenizer=tokenizer_of(vocabulary))


def deep_gpt2(vocabulary: int, *, context: int) -> LoadedModel:
    """Learned positions, and one matrix for both embeddings."""
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=context, n_embd=128, n_layer=LAYERS, n_head=8, bos_token_id=0,
        eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    return LoadedModel(model=GPT2LMHeadModel(config).eval(), tokenizer=tokenizer_of(vocabulary))


def tokenizer_of(vocabulary: int) -> Any:
    return character_tokenizer("".join(chr(0x4E00 + index) for index in range(vocabulary - 3)))


CLASHES = {
    "hidden size": lambda: deep_llama(128),
    "intermediate size": lambda: deep_llama(256),
    "query width": lambda: deep_llama(192, head=24),
    "tied embeddings": lambda: deep_llama(128, tied=True),
    "hidden size of gpt2": lambda: deep_gpt2(128, context=64),
    "positions of gpt2": lambda: deep_gpt2(132, context=132),
}


@pytest.mark.parametrize("clash", CLASHES)
def test_sound_engine_passes_whatever_side_is_as_long_as_the_vocabulary(clash: str) -> None:
    run = run_of(CLASHES[clash](), "bfloat16")
    assert json.loads(run.files[GOLDEN_FILE])["revision"] == BY_USE
    result = outcome_of(run)
    assert result.verdict is SelfTestVerdict.FITS
    assert result.noise < 0.05


@pytest.mark.parametrize(("vocabulary", "rank"), [(128, 8), (100, 2)])
def test_run_of_adapters_passes_however_they_are_scaled(vocabulary: int, rank: int) -> None:
    loaded = deep_llama(vocabulary, layers=6)
    lora = plan_lora(loaded.model, rank=rank)
    add_lora(loaded.model, lora)
    result = outcome_of(run_of(loaded, "bfloat16", lora))
    assert result.verdict is SelfTestVerdict.FITS
    assert result.noise < 0.05


def of_older_version(loaded: LoadedModel, dtype: str, monkeypatch: pytest.MonkeyPatch) -> RunModel:
    """A run made when the larger gain went by the length of a side."""
    run = run_of(loaded, dtype)
    with monkeypatch.context() as patch:
        patch.setattr(golden_creation, "least_revision", lambda _: BY_SIDE)
        raw = make_golden(run, temperature=TEMPERATURE)
    assert raw is not None
    assert b"revision" not in raw, "the file has no new field"
    return replace(run, files={**run.files, GOLDEN_FILE: raw})


def test_known_completions_that_magnify_rounding_condemn_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    run = of_older_version(deep_llama(128), "bfloat16", monkeypatch)
    result = outcome_of(run)
    assert result.verdict is SelfTestVerdict.UNDECIDED
    assert "older version" in result.message


def test_older_known_completions_are_judged_with_their_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in (deep_llama(128), deep_llama(100)):
        result = outcome_of(of_older_version(loaded, "float32", monkeypatch))
        assert (result.verdict, result.differing) == (SelfTestVerdict.FITS, 0)
    shifted = outcome_of(of_older_version(deep_llama(100), "float32", monkeypatch), lambda logits: logits.roll(1, -1))
    assert shifted.verdict is SelfTestVerdict.WRONG, "no side of this model is as long as its vocabulary"


def test_completions_that_this_machine_does_not_pass_are_not_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_creation, "least_revision", lambda _: BY_SIDE)
    loaded = deep_llama(128)
    files, layout, told = export_run_files(loaded), layout_of(loaded.model, "float32"), list[str]()
    made = golden_files(files, layout, dtype="bfloat16", temperature=TEMPERATURE, on_notice=told.append)
    assert made == {}
    assert told[0].startswith("This run ships no self-test")
    assert GOLDEN_FILE in golden_files(files, layout, dtype="float32", temperature=TEMPERATURE, on_notice=told.append)
    assert len(told) == 1
