"""Every architecture a run may use gives exact batching, replay and rebuilding."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from p2prl.models.base_model.architectures import ARCHITECTURES
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.transformers import scorer as transformers_scorer
from p2prl.models.engines.transformers.policy_model import UNNAMED, PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler, build_sampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.engines.transformers.slot_model import SlotCheck, check_slots
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import read_run_model
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten, layout_of
from p2prl_lab.testing.small_architectures import small_model

REQUESTS = [
    GenerationRequest(
        prompt_ids=tuple((5 * i // 2 + j) % 15 for j in range(3 + i // 2 % 4)),
        seed=(i + 1) * 0xFEDC_BA98_7654_321 % 2**63,
        max_new_tokens=6 + i % 3,
        temperature=1.0,
        stop_ids=frozenset({16}),
    )
    for i in range(8)
]


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_batching_replay_and_rebuilding_are_exact(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(kind)
    layout = layout_of(model, "float32")
    policy = PolicyModel(model, layout)
    sampler, scorer = TransformersSampler(policy), TransformersScorer(policy)
    made = sample_all(sampler, REQUESTS)
    token_ids = [a.token_ids for a in made]
    assert len(set(token_ids)) > 4
    assert [sample_all(sampler, [request])[0].token_ids for request in REQUESTS] == token_ids

    for elements in (1 << 24, 300):  # in one pass, and in spans over a cache
        monkeypatch.setattr(transformers_scorer, "_LOGITS", elements)
        for scored, generation in zip(scorer.replay(REQUESTS, token_ids), made, strict=True):
            assert max(scored.margins) <= 1e-4
            assert scored.logprobs == pytest.approx(generation.logprobs, abs=1e-4)

    files = export_run_files(LoadedModel(model=model, tokenizer=tiny_model().tokenizer))
    run = read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype="float32")
    rebuilt = build_sampler(run, device=torch.device("cpu"), dtype="float32")
    rebuilt.swap(rebuilt.stage(flatten(model, layout), UNNAMED))
    assert sample_all(rebuilt, REQUESTS) == made


@pytest.mark.parametrize("kind", ["gemma2", "mistral", "qwen3"])
def test_slots_are_checked_beyond_a_long_sliding_window(kind: str) -> None:
    model = small_model(kind)
    if kind != "qwen3":
        model.config.sliding_window = 4096  # longer than the sequences of the check
    with torch.inference_mode():
        check = check_slots(PolicyModel(model, layout_of(model, "float32")))
    assert check == SlotCheck(works=True, token_bytes=2 * 2 * 2 * 8 * 4)  # layers, keys and values, heads, width, bytes
    assert getattr(model.config, "sliding_window", None) == (None if kind == "qwen3" else 4096)


def test_a_model_with_other_attention_is_not_decoded_in_slots() -> None:
    """Llama 4 attends within chunks."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "intermediate_size_mlp": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = AutoConfig.for_model(
        "llama4_text", **sizes, **heads, vocab_size=18, pad_token_id=17, attention_chunk_size=4, num_local_experts=2
    )
    with torch.random.fork_rng(devices=()), torch.inference_mode():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
        check = check_slots(PolicyModel(model, layout_of(model, "float32")))
    assert check is not None
    assert not check.works
