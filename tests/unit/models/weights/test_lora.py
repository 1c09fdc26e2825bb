"""LoRA adapters: PEFT is the oracle of their layout, and a dense model with merged weights that of their sum."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from peft import PeftModel
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.pytorch_utils import Conv1D

from p2prl.errors import ConfigError, IntegrityError, RemoteProtocolError
from p2prl.models.export.weight_source import CheckpointWeights, MergedWeights
from p2prl.models.logprobs.policy_forward import PolicyForward
from p2prl.models.logprobs.scoring_model import ScoringModel
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten, is_adapter, layout_of
from p2prl.models.weights.lora import (
    add_lora,
    draw_first_adapters,
    load_adapters,
    lora_of,
    plan_lora,
    save_adapters,
    unreached_parameters,
)
from p2prl.protocol.lora_spec import LoraSpec

TOKENS = torch.tensor([[1, 2, 3, 4, 5]])


def llama() -> Any:
    torch.manual_seed(5)
    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False)  # fmt: skip
    return LlamaForCausalLM(config).eval()


def gpt2() -> Any:
    return tiny_model(seed=3).model


BASES = pytest.mark.parametrize("base", [llama, gpt2])


def with_adapters(base: Any, *, rank: int = 3, noise: float = 0.0) -> Any:
    model = copy.deepcopy(base)
    add_lora(model, plan_lora(model, rank=rank))
    draw_first_adapters(model)
    if noise:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if is_adapter(name):
                    parameter.add_(noise * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)))
    return model


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    made: torch.Tensor = model(input_ids=TOKENS, use_cache=False).logits
    return made


def test_every_linear_layer_of_the_decoder_gets_one_and_the_head_none() -> None:
    names = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    assert plan_lora(llama(), rank=4) == LoraSpec(rank=4, alpha=32.0, targets=names)
    model = with_adapters(llama())
    assert sum(".lora_A." in name for name, _ in model.named_parameters()) == 2 * 7
    assert lora_of(model) == LoraSpec(rank=3, alpha=32.0, targets=names)
    assert lora_of(llama()) is None


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="no linear layers"):
        plan_lora(_Head(), rank=4)


class _Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(2, 2)

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head


@pytest.mark.parametrize("targets", [("absent",), ("embed_tokens",), ("input_layernorm",), ("mlp", "q_proj")])
def test_layers_that_are_not_linear_are_refused(targets: tuple[str, ...]) -> None:
    """A stranger's manifest may name any."""
    with pytest.raises(ValueError, match="linear layers"):
        add_lora(llama(), LoraSpec(rank=2, alpha=8.0, targets=targets))


def test_layers_that_the_model_lacks_are_left_out() -> None:
    model = llama()
    add_lora(model, LoraSpec(rank=2, alpha=8.0, targets=("c_attn", "q_proj")))
    assert sum(".lora_A." in name for name, _ in model.named_parameters()) == 2


@BASES
def test_the_first_adapters_change_nothing_and_are_the_same_everywhere(base: Any) -> None:
    model = with_adapters(base())
    assert torch.equal(logits(model), logits(base()))
    torch.manual_seed(99)
    again = with_adapters(base())
    layout = layout_of(model, "bfloat16")
    assert flatten(model, layout) == flatten(again, layout)
    down = next(parameter for name, parameter in model.named_parameters() if ".lora_A." in name)
    bound = down.shape[1] ** -0.5
    assert 0.5 * bound < float(down.detach().abs().max()) <= bound


@BASES
def test_only_adapters_are_trained_and_they_are_the_last_of_the_layout(base: Any) -> None:
    model = with_adapters(base())
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if is_adapter(name)}
    layout = layout_of(model, "float32")
    names = [spec.name for spec in layout.tensors]
    assert all(map(is_adapter, names[-len(trained) :]))
    assert not any(map(is_adapter, names[: -len(trained)]))
    plain = layout_of(base(), "float32")
    assert [name.replace(".base_layer.", ".") for name in names[: -len(trained)]] == [s.name for s in plain.tensors]
    assert layout.trained_parameters == layout.parameters - plain.parameters
    assert plain.trained_parameters == plain.parameters


@BASES
def test_the_files_are_those_of_peft(base: Any, tmp_path: Path) -> None:
    model = with_adapters(base(), noise=0.05)
    save_adapters(model, tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(base(), tmp_path / "adapter").eval()
    assert not torch.allclose(logits(model), logits(base()), atol=1e-3)
    torch.testing.assert_close(logits(loaded), logits(model))
    other = with_adapters(base())
    load_adapters(other, tmp_path / "adapter")
    assert torch.equal(logits(other), logits(model))


@BASES
def test_merged_weights_give_the_same_logits(base: Any, tmp_path: Path) -> None:
    model = with_adapters(base(), rank=2, noise=0.05)
    save_adapters(model, tmp_path / "adapter")
    plain = base()
    plain.save_pretrained(tmp_path / "base")
    spec = lora_of(model)
    assert spec is not None
    merged = MergedWeights(CheckpointWeights(tmp_path / "base"), tmp_path / "adapter", spec)
    state = {name: torch.cat(list(merged.blocks(name))) for name in merged.shapes}
    missing, unexpected = plain.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}, "tied with the embedding"
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-4, atol=1e-5)


def test_adapters_of_another_model_or_damaged_ones_are_refused(tmp_path: Path) -> None:
    save_adapters(with_adapters(llama()), tmp_path / "adapter")
    with pytest.raises(IntegrityError, match="of another model"):
        load_adapters(with_adapters(llama(), rank=2), tmp_path / "adapter")
    gpt2().save_pretrained(tmp_path / "base")
    with pytest.raises(IntegrityError, match="of another model"):
        MergedWeights(CheckpointWeights(tmp_path / "base"), tmp_path / "adapter", LoraSpec(3, 32.0, ("q_proj",)))
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(IntegrityError, match="cannot be read"):
        load_adapters(with_adapters(llama()), tmp_path / "adapter")
    with pytest.raises(IntegrityError, match="is damaged"):
        MergedWeights(CheckpointWeights(tmp_path / "base"), tmp_path / "adapter", LoraSpec(3, 32.0, ("q_proj",)))


def test_adapters_take_the_type_and_place_of_the_model() -> None:
    model = with_adapters(llama().to(torch.bfloat16))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    with torch.device("meta"):
        absent = LlamaForCausalLM(llama().config)
    add_lora(absent, plan_lora(absent, rank=3))
    assert {parameter.device.type for parameter in absent.parameters()} == {"meta"}
    assert layout_of(absent, "bfloat16") == layout_of(model, "bfloat16")


def test_a_transposed_layer_is_known_to_peft(tmp_path: Path) -> None:
    model = with_adapters(gpt2())
    assert any(isinstance(module, Conv1D) for module in model.modules())
    save_adapters(model, tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["fan_in_fan_out"] is True


GOOD = LoraSpec(rank=16, alpha=32.0, targets=("k_proj", "q_proj"))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"rank": 0}, "rank"), ({"rank": 1_025}, "rank"), ({"alpha": 0.0}, "alpha"), ({"alpha": float("nan")}, "alpha"),
        ({"alpha": 2e6}, "alpha"), ({"targets": ()}, "1 to 64"), ({"targets": ("q", "k")}, "in order"),
        ({"targets": ("k", "k")}, "distinct"), ({"targets": tuple(f"a{n:02}" for n in range(65))}, "1 to 64"),
        ({"targets": (".*",)}, "plain"), ({"targets": ("é",)}, "plain"), ({"targets": ("a" * 65,)}, "plain"),
    ],
)  # fmt: skip
def test_impossible_adapters_of_a_manifest_are_refused(changes: dict[str, Any], fault: str) -> None:
    GOOD.check()
    with pytest.raises(RemoteProtocolError, match=fault):
        msgspec.structs.replace(GOOD, **changes).check()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_frozen_layers_pass_the_gradient_on_to_adapters_below(checkpointing: bool) -> None:
    """Also where layers are computed again: their first input needs no gradient, since the embedding is frozen."""
    rows = [((1, 2, 3), (4, 5)), ((6,), (7, 8, 9))]
    model = with_adapters(llama(), noise=0.05)
    forward = PolicyForward(ScoringModel(model, temperature=1.0))
    scored = forward.score(rows, graph=True, checkpointing=checkpointing)
    forward.backward(scored, torch.ones_like(scored.logprobs_M))
    got = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    for parameter in model.parameters():
        parameter.grad = None
    total = torch.zeros(())
    for prompt, completion in rows:
        logits_LV = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        total = total + torch.log_softmax(logits_LV, -1)[range(len(completion)), completion].sum()
    total.backward()  # type: ignore[no-untyped-call]
    wanted = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert got.keys() == wanted.keys() == {name for name, _ in model.named_parameters() if is_adapter(name)}
    for name, gradient in wanted.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-4, atol=1e-6)


def test_parameters_of_experts_are_told_from_those_that_adapters_reach() -> None:
    config = Qwen3MoeConfig(vocab_size=32, hidden_size=16, intermediate_size=24, moe_intermediate_size=8,
                            num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, num_experts=4,
                            num_experts_per_tok=2, head_dim=8)  # fmt: skip
    experts = 2 * 4 * 3 * 16 * 8  # layers, experts, and three matrices of each
    assert unreached_parameters(Qwen3MoeForCausalLM(config)) == experts
    assert unreached_parameters(llama()) == unreached_parameters(gpt2()) == 0
