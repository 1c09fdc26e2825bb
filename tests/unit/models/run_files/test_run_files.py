"""A run's files: what an honest learner ships rebuilds its model; what a hostile one ships is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from p2prl.errors import ConfigError, IntegrityError, RemoteProtocolError
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import read_run_model
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import WeightLayout, check_weights, copy_weights, flatten, layout_of
from p2prl.protocol import limits
from p2prl.protocol.run_file_names import RUN_FILE_NAMES

CPU = torch.device("cpu")
MODEL = tiny_model(seed=21)
FILES = export_run_files(MODEL)
DIGEST = layout_of(MODEL.model, "bfloat16").digest
SIZE = layout_of(MODEL.model, "bfloat16").size_bytes


def load(model: nn.Module, layout: WeightLayout, weights: bytes | bytearray) -> None:
    """Check weights, then copy them, as an engine does."""
    check_weights(model, layout, weights)
    copy_weights(model, layout, weights)


def _build(files: dict[str, bytes], digest: bytes = DIGEST, size: int = SIZE) -> LoadedModel:
    run = read_run_model(files, layout_digest=digest, weight_bytes=size, dtype="float32")
    assert run.layout.digest == digest
    return LoadedModel(model=run.build(device=CPU, dtype="float32"), tokenizer=run.tokenizer)


def _edited(name: str, **changes: Any) -> dict[str, bytes]:
    return FILES | {name: json.dumps(json.loads(FILES[name]) | changes).encode()}


def _other_models() -> list[LoadedModel]:
    sizes: dict[str, Any] = {"vocab_size": 18, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "eos_token_id": 16}
    sizes |= {"bos_token_id": 15, "pad_token_id": 17}
    llama = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **sizes))
    qwen3 = Qwen3ForCausalLM(Qwen3Config(tie_word_embeddings=False, head_dim=16, **sizes))
    return [LoadedModel(model=model.eval(), tokenizer=MODEL.tokenizer) for model in (llama, qwen3)]


@pytest.mark.parametrize("source", [MODEL, *_other_models()], ids=["gpt2", "llama", "qwen3"])
def test_rebuilt_model_computes_the_same(source: LoadedModel) -> None:
    files = export_run_files(source)
    assert RUN_FILE_NAMES.issuperset(files)
    layout = layout_of(source.model, "float32")
    loaded = _build(files, layout.digest, layout.size_bytes)
    assert all(not tensor.any() for tensor in loaded.model.state_dict().values())
    load(loaded.model, layout, flatten(source.model, layout))
    ids = torch.tensor([[15, 3, 10, 4, 12, 2, 11, 7, 13]])
    with torch.no_grad():
        assert torch.equal(loaded.model(input_ids=ids).logits, source.model(input_ids=ids).logits)
    ours, theirs = TextCodec(loaded.tokenizer, loaded.model), TextCodec(source.tokenizer, source.model)
    assert ours.encode("3+4*2-7=") == theirs.encode("3+4*2-7=")
    assert ours.stop_ids == theirs.stop_ids
    assert ours.decode((1, 17, 14)) == theirs.decode((1, 17, 14))
    assert export_run_files(loaded) == files


def test_export_drops_templates_and_paths() -> None:
    loaded = tiny_model(seed=21)
    loaded.tokenizer.chat_template = "{{ evil }}"
    loaded.model.config._name_or_path = "/home/somebody/model"
    files = export_run_files(loaded)
    assert files == FILES
    assert not any(b"evil" in data or b"somebody" in data for data in files.values())


def test_chat_template_is_dropped() -> None:
    assert _build(_edited("tokenizer_config.json", chat_template="{{ evil }}")).tokenizer.chat_template is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auto_map": {"AutoConfig": "evil.Config"}}, "requires code"),
        ({"_attn_implementation": "somebody/kernel"}, "requires code"),
        ({"attn_implementation": "somebody/kernel"}, "requires code"),
        ({"quantization_config": {"quant_method": "awq"}}, "requires code"),
        ({"model_type": "t5"}, "is not supported"),
        ({"model_type": ["gpt2"]}, "is not supported"),
        ({"model_type": None}, "is not supported"),
        ({"n_layer": 10**9}, "layers"),
        ({"num_hidden_layers": 10**9}, "layers"),
        ({"n_layer": "2"}, "layers"),
        ({"n_embd": 1 << 40}, "too large"),
        ({"vocab_size": 1 << 30}, "vocabulary"),
        ({"vocab_size": -1}, "vocabulary"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "batch"),
        ({"rope_scaling": {"full_attention": {"type": "longrope"}}}, "batch"),
        ({"rope_scaling": {"rope_type": ["linear"]}}, "batch"),
        ({"is_causal": False}, "is_causal"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"return_dict": False}, "return_dict"),
        ({"activation_function": "no-such-function"}, "not a valid model"),
        ({"n_head": 7}, "not a valid model"),
        ({"n_embd": "wide"}, "not a valid model"),
    ],
)
def test_hostile_configs_are_the_learners_fault(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        _build(_edited("config.json", **changes))


@pytest.mark.parametrize("changes", [{"n_embd": 64}, {"n_layer": 3}, {"n_positions": 1 << 20}, {"n_inner": 100}])
def test_other_model_sizes_break_the_layout_promise(changes: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match="layout"):
        _build(_edited("config.json", **changes))


def test_terabyte_model_is_refused_before_allocation() -> None:
    files = _edited("config.json", n_embd=1 << 17, n_inner=1 << 17, n_head=2)
    with torch.device("meta"):
        config = type(MODEL.model.config)(**json.loads(files["config.json"]))
        digest = layout_of(type(MODEL.model)(config), "float32").digest
    with pytest.raises(IntegrityError, match=rf"\d{{12,}} bytes of weights, and the manifest one of {SIZE}"):
        _build(files, digest)


@pytest.mark.parametrize("off", [-2, 2])
def test_a_model_of_another_size_than_the_manifest_says_is_refused(off: int) -> None:
    _build(FILES, size=59_040 * 2)
    with pytest.raises(
        IntegrityError, match=f"a model of {SIZE} bytes of weights, and the manifest one of {SIZE + off}"
    ):
        _build(FILES, size=SIZE + off)


def test_the_limit_counts_weights_as_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WEIGHT_BYTES", 59_040 * 4)  # bf16 on the wire, float32 in memory
    _build(FILES)
    monkeypatch.setattr(limits, "MAX_WEIGHT_BYTES", 59_040 * 4 - 1)
    with pytest.raises(RemoteProtocolError, match=str(59_040 * 4)):
        _build(FILES)


@pytest.mark.parametrize("name", sorted(FILES))
def test_missing_and_garbled_files_are_the_learners_fault(name: str) -> None:
    with pytest.raises(RemoteProtocolError):
        _build({key: data for key, data in FILES.items() if key != name})
    for data in (b"", b"[]", b"\xff\xfe", b"[" * 100_000, FILES[name][:-2]):
        with pytest.raises(RemoteProtocolError):
            _build(FILES | {name: data})


def test_unfit_tokenizers_are_refused() -> None:
    wide = json.loads(FILES["tokenizer.json"])
    wide["model"]["vocab"]["x"] = 18
    with pytest.raises(RemoteProtocolError, match="tokens that the model does not"):
        _build(FILES | {"tokenizer.json": json.dumps(wide).encode()})
    for token in ("<unheard>", 5, {"content": "<unheard>"}, {"content": None}):
        with pytest.raises(RemoteProtocolError, match="special token"):
            _build(_edited("tokenizer_config.json", eos_token=token))
    for end in (18, -1, "16", [3, 99], True, 1.0):
        with pytest.raises(RemoteProtocolError, match="end token"):
            _build(_edited("generation_config.json", eos_token_id=end))


def test_tokenizer_truncation_is_disabled() -> None:
    cut = json.loads(FILES["tokenizer.json"])
    cut["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    loaded = _build(FILES | {"tokenizer.json": json.dumps(cut).encode()})
    assert len(TextCodec(loaded.tokenizer, loaded.model).encode("3+4*2-7=")) == 9


def test_unusable_model_is_not_exported() -> None:
    loaded = tiny_model()
    loaded.model.config.rope_scaling = {"rope_type": "dynamic"}
    with pytest.raises(ConfigError, match="cannot use"):
        export_run_files(loaded)


def test_tokenizer_that_adds_many_tokens_is_refused() -> None:
    def wrapped(count: int) -> dict[str, bytes]:
        backend = Tokenizer.from_str(FILES["tokenizer.json"].decode())
        token = next(iter(backend.get_vocab()))
        pair = (token, backend.token_to_id(token))
        backend.post_processor = TemplateProcessing(single=" ".join([token] * count + ["$A"]), special_tokens=[pair])
        return FILES | {"tokenizer.json": backend.to_str().encode()}

    loaded = _build(wrapped(4))
    assert len(loaded.tokenizer("")["input_ids"]) == 4
    with pytest.raises(RemoteProtocolError, match="too many tokens"):
        _build(wrapped(5))
