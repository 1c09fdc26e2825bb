"""Exported models of several architectures load with the checkpoint's logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from p2prl.learner.new_run_plan import RunPlan, run_manifest
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.export.model_directory import OpenedExport, open_export, write_model
from p2prl.models.run_files.export import export_run_files
from p2prl.models.small_models.tiny_models import character_tokenizer
from p2prl.models.weights.layout import flatten, layout_of, weights_digest
from p2prl.protocol.manifests import PolicyManifest, blob_of

SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64,
}  # fmt: skip
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}

DENSE = {
    "tied": transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "untied": transformers.LlamaConfig(**SHAPE, tie_word_embeddings=False),
}
MIXTURE = transformers.Qwen2MoeConfig(**SHAPE, **EXPERTS, shared_expert_intermediate_size=16)


def made(config: Any) -> LoadedModel:
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    return LoadedModel(model=model, tokenizer=character_tokenizer("0123456789"))


def opened(loaded: LoadedModel, folder: Path, *, promised: bytes | None = None) -> OpenedExport:
    """The model saved as a checkpoint and opened; `promised` are the weights published at its step."""
    loaded.model.save_pretrained(folder / "checkpoint", max_shard_size="20KB")
    loaded.tokenizer.save_pretrained(folder / "checkpoint")
    plan = RunPlan(name="unit", goal="test", task="chain4", model="owner/public", dtype="bfloat16")
    layout, files = layout_of(loaded.model, "bfloat16"), export_run_files(loaded)
    policy = None
    if promised is not None:
        policy = PolicyManifest(
            version=3, step=7, weights=blob_of(promised, 1 << 16), weights_digest=weights_digest(promised),
            previous=bytes(32), beacon=bytes(32), created_ms=0,
        )  # fmt: skip
        (folder / policy.weights.root.hex()).write_bytes(promised)
    return open_export(
        folder / "checkpoint",
        first=folder / "absent",
        run_files=files,
        manifest=run_manifest(plan, layout, bytes(32), files, now=0.0),
        policy=policy,
        blobs=folder,
        dtype="bfloat16",
    )


def logits(directory: Path, dtype: torch.dtype) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, dtype=dtype)
    with torch.no_grad():
        result: torch.Tensor = model(torch.arange(12)[None]).logits
    return result


@pytest.mark.parametrize("name", DENSE)
def test_sharded_export_of_a_sharded_checkpoint(tmp_path: Path, name: str) -> None:
    loaded = made(DENSE[name])
    published = bytes(flatten(loaded.model, layout_of(loaded.model, "bfloat16")))
    export = opened(loaded, tmp_path, promised=published)
    assert len(list((tmp_path / "checkpoint").glob("model-*.safetensors"))) > 1
    (tmp_path / "out").mkdir()
    shares: list[float] = []
    result = write_model(export, tmp_path / "out", shard_bytes=9_000, on_progress=shares.append)
    assert result.version == 3
    assert len(result.weights.files) > 2
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert export.size_bytes == len(published) + sum(
        path.stat().st_size for path in (tmp_path / "out").iterdir() if path.name in export.files
    )
    assert torch.equal(logits(tmp_path / "out", torch.bfloat16), logits(tmp_path / "checkpoint", torch.bfloat16))


def test_experts_are_exported_under_the_names_of_the_checkpoint(tmp_path: Path) -> None:
    """transformers holds all experts in one tensor and saves one for each, as vLLM reads them."""
    loaded = made(MIXTURE)
    published = bytes(flatten(loaded.model, layout_of(loaded.model, "bfloat16")))
    export = opened(loaded, tmp_path, promised=published)
    assert "model.layers.0.mlp.experts.1.down_proj.weight" in export.source.shapes
    (tmp_path / "out").mkdir()
    result = write_model(export, tmp_path / "out", shard_bytes=1 << 30, on_progress=lambda share: None)
    assert result.version is None  # nothing to compare the version's digest with
    assert torch.equal(logits(tmp_path / "out", torch.bfloat16), logits(tmp_path / "checkpoint", torch.bfloat16))


def test_end_tokens_of_model_and_tokenizer_and_no_local_paths(tmp_path: Path) -> None:
    loaded = made(DENSE["tied"])
    loaded.model.generation_config.eos_token_id = [3]
    loaded.model.config._name_or_path = str(tmp_path)
    export = opened(loaded, tmp_path)
    (tmp_path / "out").mkdir()
    write_model(export, tmp_path / "out", shard_bytes=1 << 30, on_progress=lambda share: None)
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert generation.eos_token_id == sorted({3, loaded.tokenizer.eos_token_id})
    for path in (tmp_path / "out").glob("*.json"):
        assert str(tmp_path) not in path.read_text()


def test_chat_template_of_the_first_weights_is_kept(tmp_path: Path) -> None:
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "chat_template.jinja").write_text("{{ messages }}")
    export = opened(made(DENSE["tied"]), tmp_path)
    assert export.files["chat_template.jinja"] == b"{{ messages }}"
