"""config.json of a run: real ones are accepted; one that would stall or fill memory is refused at once."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.models import run_model
from p2prl.models.run_files.checks import LABEL_KEYS
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of

MODEL = tiny_model(seed=21)
FILES = export_run_files(MODEL)
DIGEST = layout_of(MODEL.model, "bfloat16").digest
SIZE = layout_of(MODEL.model, "bfloat16").size_bytes

STABLELM = {
    "model_type": "stablelm", "vocab_size": 100352, "hidden_size": 5120, "intermediate_size": 13824,
    "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "qk_layernorm": True,
    "use_parallel_residual": True, "partial_rotary_factor": 0.25, "rope_theta": 10000,
}  # fmt: skip
QWEN2_MOE = {"model_type": "qwen2_moe", "num_hidden_layers": 24, "num_experts": 60, "num_experts_per_tok": 4}
GEMMA3 = {
    "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
    "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "sliding_window": 512, "sliding_window_pattern": 6, "rope_theta": 1000000, "rope_local_base_freq": 10000,
    "attn_logit_softcapping": None, "use_bidirectional_attention": False, "pad_token_id": 0, "eos_token_id": [1, 106],
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
}  # fmt: skip
REAL: list[dict[str, Any]] = [
    {
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "rope_theta": 1000000.0,
        "max_window_layers": 21, "use_sliding_window": False, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "architectures": ["Qwen2ForCausalLM"], "_name_or_path": "somewhere", "transformers_version": "4.40.1",
    },
    {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "pretraining_tp": 1, "eos_token_id": [128001, 128008, 128009], "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
    },
    {
        "model_type": "gemma2", "vocab_size": 256000, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "use_bidirectional_attention": None, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0, "cache_implementation": "hybrid",
    },
    GEMMA3,
    {
        "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
    },
    {"model_type": "mistral", "vocab_size": 32768, "num_attention_heads": 32, "num_key_value_heads": 8},
    {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    },
    STABLELM,
    QWEN2_MOE,
    MIXTRAL,
]  # fmt: skip


def _read(config: dict[str, Any]) -> RunModel:
    files = FILES | {"config.json": json.dumps(config).encode()}
    return read_run_model(files, layout_digest=DIGEST, weight_bytes=SIZE, dtype="float32")


def _tiny(**changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(FILES["config.json"])
    return config | changes


def _nested(depth: int) -> object:
    return {"a": _nested(depth - 1)} if depth else 1


@pytest.mark.parametrize("config", REAL, ids=lambda config: str(config["model_type"]))
def test_real_configs_are_accepted(config: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match="layout"):  # built, and compared with the layout of another model
        _read(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (STABLELM | {"num_attention_heads": 1 << 30}, "attention heads"),
        (STABLELM | {"num_key_value_heads": 1 << 30}, "key-value heads"),
        (STABLELM | {"num_attention_heads": 512, "num_key_value_heads": None}, "norms of heads"),
        (STABLELM | {"num_hidden_layers": 256}, "norms of heads"),
        (_tiny(n_head=1 << 30), "attention heads"),
        (_tiny(num_attention_heads=0), "attention heads"),
        (QWEN2_MOE | {"num_experts": 1 << 30}, "experts"),
        (QWEN2_MOE | {"num_experts_per_tok": 1 << 30}, "experts"),
        (QWEN2_MOE | {"mlp_only_layers": [0] * 100_000}, "list"),
        (GEMMA3 | {"layer_types": ["full_attention"] * 100_000}, "list"),
        (GEMMA3 | {"layer_types": ["chunked_attention"] * 26}, "type of layer"),
        (MIXTRAL | {"num_local_experts": 513}, "experts"),
        ({"model_type": "minimax_m2", "my_own_blocks": 257}, "'my_own_blocks' is more than 256"),
        ({"model_type": "qwen3", "mlp_layer_types": ["mine"]}, "type of layer"),
        (_tiny(extra=_nested(500)), "nested"),
        (_tiny(per_layer_config=[{}]), "per_layer_config"),
        (GEMMA3 | {"pad_token_id": 1 << 20}, "not a valid model"),
    ],
)
def test_configs_that_multiply_modules_are_refused_at_once(config: dict[str, Any], message: str) -> None:
    start = time.process_time()
    with pytest.raises(RemoteProtocolError, match=message):
        _read(config)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"num_labels": 2_000_000_000},
        {"id2label": {"0": "a"}, "label2id": {"a": 0}, "problem_type": "regression"},
        {"attribute_map": {"num_hidden_layers": "n_head"}},
        {"base_model_tp_plan": {}, "sub_configs": {"a": {}}, "validate": 1, "__class__": 1, "dtype": "rand"},
        {"_output_attentions": True},
    ],
)
def test_settings_that_no_model_needs_are_ignored(changes: dict[str, Any]) -> None:
    run = _read(_tiny(**changes))
    assert not set(changes) & set(run.settings())
    config = run.skeleton.config
    assert config.num_labels == 2
    assert config.num_hidden_layers == MODEL.model.config.num_hidden_layers
    assert not config.output_attentions


def test_labels_are_not_exported() -> None:
    assert not set(LABEL_KEYS) & set(json.loads(FILES["config.json"]))


def test_more_modules_than_any_model_has_are_refused_while_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_model, "MAX_MODULES", 100)
    with pytest.raises(RemoteProtocolError, match="more than 100 modules"):
        _read(MIXTRAL)
    monkeypatch.setattr(run_model, "MAX_MODULES", 10_000)
    with pytest.raises(IntegrityError, match="layout"):
        _read(MIXTRAL)
