"""Loading of pretrained models: round trips through a directory, and everything that is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import torch

from p2prl.errors import ConfigError
from p2prl.models.base_model.pretrained import check_saveable, load_pretrained
from p2prl.models.export.weight_source import CheckpointWeights
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import flatten, layout_of

CPU = torch.device("cpu")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    loaded = tiny_model(seed=11)
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def _edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_saved_model_loads_bit_for_bit(directory: Path) -> None:
    loaded, source = load_pretrained(str(directory), device=CPU), tiny_model(seed=11)
    layout = layout_of(source.model, "float32")
    assert layout_of(loaded.model, "float32") == layout
    assert flatten(loaded.model, layout) == flatten(source.model, layout)
    assert not loaded.model.training
    ours, theirs = TextCodec(loaded.tokenizer, loaded.model), TextCodec(source.tokenizer, source.model)
    assert ours.encode("3+4*2-7=") == theirs.encode("3+4*2-7=")
    assert ours.decode((1, 14, 1)) == theirs.decode((1, 14, 1)) == "1#1"
    assert ours.stop_ids == theirs.stop_ids


def test_dtype_is_the_callers_choice(directory: Path) -> None:
    loaded = load_pretrained(str(directory), device=CPU, dtype="bfloat16")
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    with pytest.raises(ConfigError, match="int8"):
        load_pretrained(str(directory), device=CPU, dtype="int8")


@pytest.mark.parametrize("name", ["/no/such/model", "./missing", "~/missing-model", "a/b/c", "owner/na me", ""])
def test_missing_directory_is_not_sought_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> str:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ConfigError, match="no directory"):
        load_pretrained(name)


def test_hub_id_is_downloaded_and_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append(name)
        assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in allow_patterns)
        return str(directory)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_pretrained("owner/some-model.v2", device=CPU).model.config.n_embd == 48
    assert asked == ["owner/some-model.v2"]


def test_unreachable_hub_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **kwargs: object) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ConfigError, match="no route") as caught:
        load_pretrained("owner/model")
    assert "connection" in caught.value.remedy


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt"])
def test_pickled_weights_are_refused(directory: Path, name: str) -> None:
    (directory / "model.safetensors").rename(directory / name)
    with pytest.raises(ConfigError, match=name) as caught:
        load_pretrained(str(directory))
    assert "safetensors" in caught.value.remedy


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "changes",
    [
        {"auto_map": {"AutoModelForCausalLM": "evil.Model"}},
        {"quantization_config": {"quant_method": "gptq"}},
        {"attn_implementation": "somebody/kernel"},
        {"inner": [{"_experts_implementation": "somebody/kernel"}]},
    ],
)
def test_configs_that_name_code_are_refused(directory: Path, file: str, changes: dict[str, Any]) -> None:
    _edit(directory / file, **changes)
    with pytest.raises(ConfigError, match="requires code"):
        load_pretrained(str(directory))


def test_missing_weights_are_refused(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors.pop("transformer.h.1.mlp.c_fc.weight")
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="lack"):
        load_pretrained(str(directory))


def test_directories_without_a_model_are_refused(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_pretrained(str(tmp_path_factory.mktemp("empty")))
    (directory / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="JSON object"):
        load_pretrained(str(directory))
    (directory / "config.json").write_text('{"model_type": "no-such-type"}')
    with pytest.raises(ConfigError, match=r"config\.json of .* cannot be used"):
        load_pretrained(str(directory))
    (directory / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no weights"):
        load_pretrained(str(directory))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"temperature": 0.7}, "temperature"),
        ({"do_sample": False, "top_p": 0.9}, "top_p"),
    ],
)
def test_what_transformers_would_refuse_to_save_is_named(
    directory: Path, settings: dict[str, Any], field: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 3, **settings}))
    loaded = load_pretrained(str(directory), device=CPU)
    with pytest.raises(ConfigError, match=f"^{field} in generation_config") as caught:
        check_saveable(loaded, "NAME")
    assert f"Correct or remove {field} there" in caught.value.remedy
    (directory / "generation_config.json").write_text('{"eos_token_id": 3}')
    loaded = load_pretrained(str(directory), device=CPU)
    check_saveable(loaded, "NAME")
    loaded.model.save_pretrained(tmp_path_factory.mktemp("saved"))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "generation_config.json",
            '{"num_beams": 4, "num_return_sequences": 9}',
            "generation_config.json of .*num_return",
        ),
        ("generation_config.json", "[1, 2]", "generation_config.json is not a JSON object"),
        ("tokenizer.json", '{"broken": ', "the tokenizer of .* cannot be loaded: JSONDecodeError"),
        ("tokenizer.json", '{"version": "1.0"}', "the tokenizer of .* cannot be loaded"),
    ],
)
def test_a_file_that_a_library_cannot_read_is_named(directory: Path, file: str, text: str, message: str) -> None:
    (directory / file).write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_pretrained(str(directory), device=CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layer": "two"}, r"config\.json of .* cannot be used: .*n_layer"),
        ({"n_head": 5}, "cannot be loaded as a causal language model: .*num_heads"),
        ({"n_inner": 7}, "other shapes than its config.json says: transformer.h.0.mlp"),
    ],
)
def test_a_config_that_does_not_fit_is_named(directory: Path, changes: dict[str, Any], message: str) -> None:
    _edit(directory / "config.json", **changes)
    with pytest.raises(ConfigError, match=message):
        load_pretrained(str(directory), device=CPU)


def test_loading_code_for_models_says_nothing() -> None:
    """transformers imports torchao where it is installed, which has much to say of kernels for other cards."""
    program = [sys.executable, "-c", "import p2prl.models.base_model.pretrained"]
    done = subprocess.run(program, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONWARNINGS": ""})
    assert (done.stdout, done.stderr) == ("", "")


def test_a_file_is_told_from_a_directory_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"model\.gguf is a file, not a directory") as caught:
        load_pretrained(str(tmp_path / "model.gguf"))
    assert "safetensors" in caught.value.remedy


def _elsewhere(directory: Path, shard: str) -> None:
    """Let the index name a file that is not the directory's own."""
    weights = directory / "model.safetensors"
    names = safetensors.torch.load_file(weights)
    weights.rename(directory.parent / "private.safetensors")
    safetensors.torch.save_file({}, directory / "other.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, shard)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("where", ["../private.safetensors", "/absolute", "sub/x.safetensors", "..", "", "other.bin"])
def test_an_index_names_files_of_its_own_directory_alone(tmp_path: Path, where: str) -> None:
    """A stranger's model would have the weights of another one loaded, trained and published."""
    directory = tmp_path / "model"
    loaded = tiny_model(seed=11)
    loaded.model.save_pretrained(directory)
    loaded.tokenizer.save_pretrained(directory)
    _elsewhere(directory, str(tmp_path / "private.safetensors") if where == "/absolute" else where)
    with pytest.raises(ConfigError, match="does not list safetensors files beside it"):
        load_pretrained(str(directory), device=CPU)
    with pytest.raises(ConfigError, match="does not list safetensors files beside it"):
        CheckpointWeights(directory)


def test_adapters_do_not_bring_the_model_that_they_name(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/home/me/private"}))
    with pytest.raises(ConfigError, match="adapters of another model"):
        load_pretrained(str(directory), device=CPU)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "model.safetensors.index.json"])
def test_a_file_of_any_size_is_read_up_to_a_limit(directory: Path, file: str) -> None:
    with (directory / file).open("r+b" if (directory / file).exists() else "wb") as large:
        large.truncate(1 << 40)  # sparse
    with pytest.raises(ConfigError, match=f"{file} has more than 32 MB"):
        load_pretrained(str(directory), device=CPU)
