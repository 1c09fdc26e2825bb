"""Every architecture a run may use gives exact batching, replay and rebuilding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from p2prl.models import transformers_scorer
from p2prl.models.policy_model import UNNAMED, PolicyModel
from p2prl.models.pretrained import LoadedModel
from p2prl.models.run_file_checks import ARCHITECTURES
from p2prl.models.run_files import export_run_files
from p2prl.models.run_model import read_run_model
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.tiny_models import tiny_model
from p2prl.models.transformers_sampler import TransformersSampler, build_sampler
from p2prl.models.transformers_scorer import TransformersScorer
from p2prl.models.weight_layout import flatten, layout_of

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


def _model(kind: str) -> Any:
    settings: dict[str, Any] = {"vocab_size": 18, "bos_token_id": 15, "eos_token_id": 16, "pad_token_id": 17}
    settings |= {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 48}
    if kind == "opt":
        settings |= {"ffn_dim": 48, "word_embed_proj_dim": 32}
    elif kind != "gpt2":
        settings |= {"intermediate_size": 48}
    if kind not in ("gpt2", "opt", "gpt_neox", "phi"):
        settings |= {"num_key_value_heads": 2}
    if kind.startswith(("gemma", "glm", "qwen3")):
        settings |= {"head_dim": 8}
    if kind in ("gemma2", "gemma3_text", "mistral", "olmo3", "starcoder2"):
        settings |= {"sliding_window": 4}  # shorter than every sequence here
    if kind.endswith("moe"):
        settings |= {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
        settings |= {"num_experts_per_tok": 2}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        config = AutoConfig.for_model(kind, **settings)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5.0)
    return model.eval()


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_batching_replay_and_rebuilding_are_exact(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model(kind)
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
    run = read_run_model(files, layout_digest=layout.digest, max_weight_bytes=1 << 24, dtype="float32")
    rebuilt = build_sampler(run, device=torch.device("cpu"), dtype="float32")
    rebuilt.swap(rebuilt.stage(flatten(model, layout), UNNAMED))
    assert sample_all(rebuilt, REQUESTS) == made
