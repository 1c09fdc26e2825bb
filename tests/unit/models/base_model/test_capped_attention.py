"""A model that caps its attention scores (Gemma 2) does so wherever it is built, loaded or sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from p2prl.errors import ConfigError
from p2prl.models.base_model.attention import exact_attention, use_attention
from p2prl.models.base_model.pretrained import LoadedModel, load_pretrained
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.slot_model import SlotModel, check_slots
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import read_run_model
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import copy_weights, flatten, layout_of
from p2prl_lab.testing.small_architectures import small_model

CPU = torch.device("cpu")
IDS = torch.tensor([[15, 3, 10, 4, 12, 2, 11, 7]])


def _capped(attention: str) -> Any:
    """A small model whose scores a cap changes much."""
    plain = small_model("gemma2")
    settings = plain.config.to_dict() | {"attn_logit_softcapping": 0.05, "query_pre_attn_scalar": 1}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), attn_implementation=attention)
    model.load_state_dict(plain.state_dict())
    return model.eval()


def _logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=IDS).logits
    return logits


@pytest.fixture(scope="module")
def eager() -> Any:
    return _capped("eager")


def test_torch_attention_drops_the_cap(eager: Any) -> None:
    assert not torch.allclose(_logits(eager), _logits(_capped("sdpa")), atol=1e-2)


def test_built_and_loaded_models_keep_the_cap(eager: Any, tmp_path: Path) -> None:
    layout = layout_of(eager, "float32")
    files = export_run_files(LoadedModel(model=eager, tokenizer=tiny_model().tokenizer))
    run = read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype="float32")
    built = run.build(device=CPU, dtype="float32")
    copy_weights(built, layout, flatten(eager, layout))
    assert torch.equal(_logits(built), _logits(eager))
    assert run.outline().config._attn_implementation == "eager"
    eager.save_pretrained(tmp_path)
    tiny_model().tokenizer.save_pretrained(tmp_path)
    loaded = load_pretrained(str(tmp_path), device=CPU, dtype="float32").model
    use_attention(loaded, "sdpa")
    assert torch.equal(_logits(loaded), _logits(eager))


def test_slots_keep_the_cap() -> None:
    model = _capped("eager")
    policy = PolicyModel(model, layout_of(model, "float32"))
    with torch.inference_mode():
        check = check_slots(policy)
        assert check is not None
        assert check.works
        wanted = _logits(model)[0, -1]
        slots = SlotModel(policy)
        slots.reserve(1, 8, most_rows=1, most_columns=8)
        slots.fill([0], [tuple(IDS[0, :-1].tolist())])
        got = slots.logits(IDS[0, -1:], torch.tensor([7]), 8)[0]
    assert torch.allclose(got, wanted, atol=1e-4)


def test_kernels_follow_the_cap_alone() -> None:
    assert exact_attention(AutoConfig.for_model("gemma2")) == "eager"
    for kind in ("gemma2", "gemma3_text"):
        assert exact_attention(AutoConfig.for_model(kind, attn_logit_softcapping=None)) == "sdpa"
    assert exact_attention(AutoConfig.for_model("llama")) == "sdpa"


def test_flash_attention_is_refused_for_capped_scores(eager: Any) -> None:
    with pytest.raises(ConfigError, match="does not compute"):
        use_attention(eager, "flash_attention_2")
