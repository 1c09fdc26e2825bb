"""The output layer apart from the model, and replays through it, against the model's own logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from p2prl.errors import MachineError
from p2prl.models.engines.transformers import scorer as transformers_scorer
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.logprobs import replay_head
from p2prl.models.logprobs.replay_head import find_replay_head
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.seeded_draw.gumbel_noise import gumbel
from p2prl.models.weights.layout import layout_of

VOCABULARY = 5000
PROMPT = torch.arange(4)[None]


def _model(kind: str, **options: Any) -> Any:
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    heads = {} if kind == "gpt2" else {"num_key_value_heads": 1, "head_dim": 8}
    config = AutoConfig.for_model(kind, vocab_size=VOCABULARY, max_position_embeddings=64, **shape, **heads, **options)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config).eval()
        torch.nn.init.normal_(model.get_output_embeddings().weight, std=0.5)
    return model


@pytest.mark.parametrize(
    ("kind", "options", "is_plain"),
    [
        ("gpt2", {}, True),
        ("qwen2", {"tie_word_embeddings": True}, True),
        ("llama", {}, True),
        ("gemma2", {"final_logit_softcapping": 30.0}, False),
        ("granite", {"logits_scaling": 4.0}, False),
    ],
)
@torch.inference_mode()
def test_models_that_change_their_logits_have_none(kind: str, options: dict[str, Any], is_plain: bool) -> None:
    assert (find_replay_head(_model(kind, **options)) is not None) is is_plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_logits_of_a_part_are_the_models_own(dtype: torch.dtype) -> None:
    model = _model("llama").to(dtype)
    layer = find_replay_head(model)
    assert layer is not None
    own = model(input_ids=PROMPT, use_cache=False).logits[0, 1:].float()
    made = layer.logits(layer.states_before([(0, 1)], [(2, 3, 4)]), 100, 300)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(made, own[:, 100:300], rtol=tolerance, atol=tolerance)


def _requests(prompts: list[tuple[int, ...]]) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            prompt_ids=prompt, seed=(1 << 61) + i, max_new_tokens=9, temperature=0.5 + i / 4, stop_ids=frozenset()
        )
        for i, prompt in enumerate(prompts)
    ]


def _expected(model: Any, request: GenerationRequest, ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Margins and log-probs of one completion, from its own forward pass."""
    prompt = len(request.prompt_ids)
    logits = model(input_ids=torch.tensor([[*request.prompt_ids, *ids]]), use_cache=False).logits[0, prompt - 1 : -1]
    scaled = logits.float() / request.temperature
    noisy = scaled + gumbel(torch.tensor([request.seed]), torch.arange(len(ids))[None], VOCABULARY)[0]
    where = torch.tensor(ids)[:, None]
    return noisy.amax(-1) - noisy.gather(1, where)[:, 0], torch.log_softmax(scaled, -1).gather(1, where)[:, 0]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "granite"])
@pytest.mark.parametrize("prompts", [[(1, 2, 3)] * 5, [(1, 2, 3), (9,), (4, 5)] * 4, [(7,) * n for n in range(1, 6)]])
@pytest.mark.parametrize("part_logits", [1, 1 << 22])
@pytest.mark.parametrize("tokens_per_call", [1, 128])
def test_replay_of_a_large_vocabulary(
    kind: str, prompts: list[tuple[int, ...]], part_logits: int, tokens_per_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_scorer, "_PART_LOGITS", part_logits)
    monkeypatch.setattr(replay_head, "_TOKENS_PER_CALL", tokens_per_call)
    model = _model(kind)
    scorer = TransformersScorer(PolicyModel(model, layout_of(model, "float32")))
    requests = _requests(prompts)
    generator = torch.Generator().manual_seed(3)
    lengths = [1 + i % 9 for i in range(len(requests))]
    completions = [tuple(torch.randint(0, VOCABULARY, (n,), generator=generator).tolist()) for n in lengths]
    for made, request, ids in zip(scorer.replay(requests, completions), requests, completions, strict=True):
        with torch.inference_mode():
            margins, logprobs = _expected(model, request, ids)
        torch.testing.assert_close(torch.tensor(made.margins), margins, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(torch.tensor(made.logprobs), logprobs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("prompt_tokens", "groups", "calls"),
    [(3, 4, 1), (54, 1, 2), (40, 4, 8), (4, 1, 1)],
)
@torch.inference_mode()
def test_a_prompt_is_computed_once_where_that_saves_more_than_its_calls_cost(
    prompt_tokens: int, groups: int, calls: int
) -> None:
    model = _model("llama")
    layer = find_replay_head(model)
    assert layer is not None
    made: list[int] = []
    model.base_model.register_forward_pre_hook(lambda *_: made.append(1))
    prompts = [(group,) * prompt_tokens for group in range(groups) for _ in range(8)]
    states = layer.states_before(prompts, [(1, 2)] * len(prompts))
    assert states.shape == (16 * groups, 16)
    assert len(made) == calls


@pytest.mark.parametrize("tokens_per_call", [0, 128])
def test_replay_of_single_tokens_after_one_prompt(tokens_per_call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_head, "_TOKENS_PER_CALL", tokens_per_call)
    model = _model("llama")
    scorer = TransformersScorer(PolicyModel(model, layout_of(model, "float32")))
    requests = _requests([(1, 2)] * 4)
    made = scorer.replay(requests, [(i,) for i in range(4)])
    with torch.inference_mode():
        expected = [_expected(model, request, (i,))[0] for i, request in enumerate(requests)]
    torch.testing.assert_close(
        torch.tensor([row.margins[0] for row in made]), torch.cat(expected), rtol=1e-5, atol=1e-4
    )


def _small_scorer() -> TransformersScorer:
    model = _model("llama")
    return TransformersScorer(PolicyModel(model, layout_of(model, "float32")))


def test_a_replay_that_runs_out_of_memory_goes_on_in_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = _requests([(1, 2)] * 8)
    completions = [(i, i + 1) for i in range(8)]
    expected = _small_scorer().replay(requests, completions)
    scorer, complete, sizes = _small_scorer(), TransformersScorer._score, []

    def scarce(self: Any, requests: Any, token_ids: Any, probes: Any) -> Any:
        sizes.append(len(requests))
        if len(requests) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return complete(self, requests, token_ids, probes)

    monkeypatch.setattr(TransformersScorer, "_score", scarce)
    made = scorer.replay(requests, completions)
    assert sizes == [8, 4, 2, 2, 4, 2, 2]
    for one, other in zip(made, expected, strict=True):
        assert one.margins == pytest.approx(other.margins, abs=1e-4)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize(("error", "expected"), [(MemoryError(), MachineError), (RuntimeError("shape"), RuntimeError)])
def test_a_single_completion_too_large_is_named_and_other_errors_pass(
    error: BaseException, expected: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(TransformersScorer, "_score", fail)
    with pytest.raises(expected, match="single completion" if expected is MachineError else "shape"):
        _small_scorer().replay(_requests([(1, 2)]), [(3,)])
