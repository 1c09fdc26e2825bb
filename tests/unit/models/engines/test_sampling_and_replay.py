"""Seeded sampling and replay of real transformers models, against a loop that samples one token at a time."""

from __future__ import annotations

import dataclasses
import itertools
import platform
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from p2prl.errors import ConfigError, IntegrityError, LocalProtocolError
from p2prl.models.engines.transformers import scorer as transformers_scorer
from p2prl.models.engines.transformers.batch_decoder import BatchDecoder
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.sampler_port import Generation, GenerationRequest, GenerationStopped
from p2prl.models.sampling import sample_all
from p2prl.models.seeded_draw.gumbel_noise import gumbel
from p2prl.models.weights.layout import flatten, layout_of
from p2prl.protocol.digests import chunk_digest

VOCABULARY, STOP = 18, 16


def _sharpened(model: Any) -> Any:
    """Random weights scaled up to give distinct logits: with tiny logits every model samples alike."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
    return model.eval()


def _model(kind: str, seed: int = 3) -> Any:
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 15, "eos_token_id": STOP, "pad_token_id": 17}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        if kind == "gpt2":  # learned positions: wrong position ids under padding would show
            return _sharpened(GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=48, **sizes)))
        if kind == "qwen2":  # grouped keys, biases, untied head
            grown = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
            config = Qwen2Config(num_key_value_heads=2, max_position_embeddings=48, **grown, **sizes)
            return _sharpened(Qwen2ForCausalLM(config))
        if kind == "lfm2":  # a convolution, then attention
            layers: dict[str, Any] = {
                "num_hidden_layers": 2,
                "layer_types": ["conv", "full_attention"],
                "num_attention_heads": 4,
            }
            layers |= {"hidden_size": 32, "intermediate_size": 48, "num_key_value_heads": 2}
            return _sharpened(Lfm2ForCausalLM(Lfm2Config(max_position_embeddings=48, **layers, **sizes)))
        wide = {"hidden_size": 48, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
        return _sharpened(
            LlamaForCausalLM(LlamaConfig(max_position_embeddings=48, tie_word_embeddings=True, **wide, **sizes))
        )


def _policy(model: Any) -> PolicyModel:
    return PolicyModel(model, layout_of(model, "float32"))


def _sampler(model: Any, **options: Any) -> TransformersSampler:
    return TransformersSampler(_policy(model), **options)


def _scorer(model: Any) -> TransformersScorer:
    return TransformersScorer(_policy(model))


def _requests(count: int = 24) -> list[GenerationRequest]:
    """Ragged prompts, some shared, with different limits and temperatures."""
    return [
        GenerationRequest(
            prompt_ids=tuple((7 * i // 3 + j) % 15 for j in range(2 + i // 3 % 5)),
            seed=(i + 1) * 0x1234_5678_9ABC_DEF % 2**63,
            max_new_tokens=5 + i % 7,
            temperature=0.7 + 0.1 * (i % 4),
            stop_ids=frozenset({STOP, 9}),
        )
        for i in range(count)
    ]


@torch.no_grad()
def _sample_alone(model: Any, request: GenerationRequest) -> Generation:
    """One request, no cache, no padding, no batch: the definition of a draw, written out."""
    ids, logprobs = list(request.prompt_ids), []
    for step in range(request.max_new_tokens):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double() / request.temperature
        noise = gumbel(torch.tensor([request.seed]), torch.tensor([[step]]), VOCABULARY)[0, 0].double()
        token = int((logits + noise).argmax())
        ids.append(token)
        logprobs.append(float(torch.log_softmax(logits, 0)[token]))
        if token in request.stop_ids:
            break
    made = tuple(ids[len(request.prompt_ids) :])
    return Generation(made, tuple(logprobs), made[-1] in request.stop_ids)


def _same(made: Generation, expected: Generation) -> bool:
    return (
        made.token_ids == expected.token_ids
        and made.finished == expected.finished
        and made.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    )


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2"])
def test_batches_sample_what_single_requests_sample(kind: str) -> None:
    model, requests = _model(kind), _requests()
    made = sample_all(_sampler(model), requests)
    assert all(_same(a, _sample_alone(model, request)) for a, request in zip(made, requests, strict=True))
    assert {a.finished for a in made} == {True, False}
    assert len({len(a.token_ids) for a in made}) > 3


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2"])
def test_rows_that_join_and_leave_change_no_token(kind: str, rows: int) -> None:
    model, requests = _model(kind), _requests()
    expected = sample_all(_sampler(model), requests)
    made = sample_all(_sampler(model, most_rows=rows), requests[::-1])[::-1]
    assert all(_same(a, b) for a, b in zip(made, expected, strict=True))


@pytest.mark.parametrize("tokens", [1, 40, 10_000])
def test_models_without_slots_are_decoded_in_batches(tokens: int) -> None:
    """LFM2 keeps the state of a convolution, which no row of keys and values holds."""
    model, requests = _model("lfm2"), _requests(12)
    sampler = _sampler(model, max_batch_tokens=tokens)
    made = sample_all(sampler, requests)
    assert all(_same(a, _sample_alone(model, request)) for a, request in zip(made, requests, strict=True))
    assert isinstance(sampler._decoder, BatchDecoder)


def test_rows_join_while_others_are_decoded() -> None:
    """Submitted in three parts, between steps; a group shares its prompt with rows in flight."""
    model, requests = _model("qwen2"), [dataclasses.replace(r, prompt_ids=(3, 1, 2)) for r in _requests(9)]
    sampler = _sampler(model)
    tickets: list[int] = []
    ended: dict[int, Generation] = {}
    for part in (requests[:4], requests[4:5], requests[5:]):
        tickets += sampler.submit(part)
        for _ in range(3):
            ended.update(sampler.step().ended)
    assert 0 < len(ended) < len(requests)
    while sampler.in_flight:
        ended.update(sampler.step().ended)
    for ticket, request in zip(tickets, requests, strict=True):
        assert _same(ended[ticket], _sample_alone(model, request))


@pytest.mark.parametrize("elements", [1, 500, 1 << 24])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2"])
def test_honest_replay_has_margin_zero(kind: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, requests = _model(kind), _requests()
    sampler, scorer = _sampler(model), _scorer(model)
    made = sample_all(sampler, requests)
    monkeypatch.setattr(transformers_scorer, "_LOGITS", elements)  # small: cut into spans over a cache
    scored = scorer.replay(requests, [a.token_ids for a in made])
    for a, b in zip(made, scored, strict=True):
        assert b.logprobs == pytest.approx(a.logprobs, abs=1e-4)
        assert len(b.margins) == len(a.token_ids)
        assert max(b.margins) <= 1e-4
        assert min(b.margins) >= 0.0


@pytest.mark.parametrize("plain", [True, False])
def test_scores_describe_the_row_and_its_draw(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete logits, from the model itself, give the same size of a row and log-prob of its draw."""
    model, requests = _model("llama"), _requests(6)
    ids = [tuple((token + 1) % 15 for token in made.token_ids) for made in sample_all(_sampler(model), requests)]
    policy = _policy(model)
    if not plain:
        monkeypatch.setattr(policy, "replay_head", None)
    for request, row, scored in zip(requests, ids, TransformersScorer(policy).replay(requests, ids), strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*request.prompt_ids, *row]])).logits[0]
        scaled = logits[len(request.prompt_ids) - 1 : -1] / request.temperature
        steps = torch.arange(len(row))
        noisy = scaled + gumbel(torch.tensor([request.seed]), steps[None], VOCABULARY)[0]
        best = torch.log_softmax(scaled, dim=-1).gather(1, noisy.argmax(dim=-1)[:, None])[:, 0]
        assert scored.best_logprobs == pytest.approx(best.tolist(), abs=1e-4)
        assert scored.sizes == pytest.approx(scaled.square().mean(dim=-1).sqrt().tolist(), rel=1e-4)
        assert scored.margins == pytest.approx(
            (noisy.amax(dim=-1) - noisy.gather(1, torch.tensor(row)[:, None])[:, 0]).tolist(), abs=1e-4
        )


def _worst_margins(model: Any, requests: list[GenerationRequest], token_ids: list[tuple[int, ...]]) -> list[float]:
    return [max(scored.margins) for scored in _scorer(model).replay(requests, token_ids)]


def test_replay_catches_other_seed_and_temperature() -> None:
    model, requests = _model("llama"), _requests(32)
    for change in ({"seed": 5}, {"temperature": 2.5}, {"temperature": 0.1}):
        cheats = [dataclasses.replace(r, max_new_tokens=12, **change) for r in requests]
        honest = [dataclasses.replace(r, max_new_tokens=12) for r in requests]
        made = [a.token_ids for a in sample_all(_sampler(model), cheats)]
        assert sum(margin > 0.01 for margin in _worst_margins(model, honest, made)) > 20


def test_replay_catches_every_edited_token() -> None:
    model, requests = _model("llama"), _requests(8)
    made = [a.token_ids for a in sample_all(_sampler(model), requests)]
    for i, ids in enumerate(made):
        for place, other in itertools.product(range(len(ids)), (0, 7, 14)):
            if ids[place] != other:
                edited = (*ids[:place], other, *ids[place + 1 :])
                scored = _scorer(model).replay([requests[i]], [edited])[0]
                assert scored.margins[place] > 0.0
                assert max(scored.margins[:place], default=0.0) <= 1e-4


def test_replay_catches_other_weights() -> None:
    honest, other = _model("llama"), _model("llama", seed=4)
    requests = _requests(32)
    made = [a.token_ids for a in sample_all(_sampler(honest), requests)]
    assert sum(margin > 0.01 for margin in _worst_margins(other, requests, made)) > 25
    scorer = _scorer(other)
    scorer.load_weights(memoryview(flatten(honest, layout_of(honest, "float32"))))
    assert max(max(scored.margins) for scored in scorer.replay(requests, made)) <= 1e-4


def test_unfit_weights_leave_the_policy() -> None:
    model, requests = _model("llama"), _requests(4)
    policy = _policy(model)
    sampler, scorer = TransformersSampler(policy), TransformersScorer(policy)
    before = sample_all(sampler, requests)
    with pytest.raises(IntegrityError, match="bytes"):
        scorer.load_weights(b"short")
    assert sample_all(sampler, requests) == before


def test_generation_reports_tokens_and_stops() -> None:
    sampler, requests = _sampler(_model("llama")), _requests()
    steps: list[int] = []
    made = sample_all(sampler, requests, on_step=steps.append)
    assert sum(steps) == sum(len(a.token_ids) for a in made)
    asked: list[None] = []

    def stop_at_third() -> bool:
        asked.append(None)
        return len(asked) == 3

    with pytest.raises(GenerationStopped):
        sample_all(sampler, requests, should_stop=stop_at_third)
    assert len(asked) == 3
    assert sample_all(sampler, requests) == made


def test_nan_logits_are_not_sampled() -> None:
    model = _model("llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(3e38)
        model.model.embed_tokens.weight.mul_(1e3)
    with pytest.raises(IntegrityError, match="not numbers"):
        sample_all(_sampler(model), _requests(2))


def test_illegal_requests_are_refused() -> None:
    policy, request = _policy(_model("llama")), _requests(1)[0]
    sampler, scorer = TransformersSampler(policy), TransformersScorer(policy)
    for change in ({"prompt_ids": ()}, {"seed": 2**63}, {"max_new_tokens": 0}, {"temperature": 0.0}):
        with pytest.raises(ConfigError):
            dataclasses.replace(request, **change)
    with pytest.raises(ConfigError, match="vocabulary"):
        sample_all(sampler, [dataclasses.replace(request, prompt_ids=(VOCABULARY,))])
    with pytest.raises(ConfigError, match="context"):
        sample_all(sampler, [dataclasses.replace(request, max_new_tokens=47)])
    for ids in ((), (VOCABULARY,), (-1,), (1,) * (request.max_new_tokens + 1)):
        with pytest.raises(IntegrityError):
            scorer.replay([request], [ids])
    with pytest.raises(LocalProtocolError):
        scorer.replay([request], [])
    assert sample_all(sampler, []) == []
    assert scorer.replay([], []) == []


def test_engine_class_of_the_model() -> None:
    described = _policy(_model("llama")).engine_class
    assert (described.engine, described.dtype) == ("transformers", "float32")
    assert described.device == f"cpu {platform.machine()}"


# --- swapping between two tokens -------------------------------------------------------------------------------


@torch.no_grad()
def _sample_through_a_swap(first: Any, second: Any, request: GenerationRequest, swap_after: int) -> list[int]:
    """One request whose policy changes after `swap_after` tokens: old keys and values stay, new tokens use the new."""
    ids = list(request.prompt_ids)
    cache, fed = None, 0
    for step in range(request.max_new_tokens):
        model = first if step < swap_after else second
        output = model(input_ids=torch.tensor([ids[fed:]]), past_key_values=cache, use_cache=True)
        cache, fed = output.past_key_values, len(ids)
        noise = gumbel(torch.tensor([request.seed]), torch.tensor([[step]]), VOCABULARY)[0, 0].double()
        token = int((output.logits[0, -1].double() / request.temperature + noise).argmax())
        ids.append(token)
        if token in request.stop_ids:
            break
    return ids[len(request.prompt_ids) :]


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_policy_swap_between_two_tokens(kind: str) -> None:
    first, second = _model(kind, seed=3), _model(kind, seed=4)
    sampler = _sampler(_model(kind, seed=5))
    sampler.swap(sampler.stage(flatten(first, layout_of(first, "float32")), 7))
    staged = sampler.stage(flatten(second, layout_of(second, "float32")), 8)
    steps = itertools.count(1)

    def swap_after_three(_: int) -> None:
        if next(steps) == 3:
            sampler.swap(staged)

    requests = [dataclasses.replace(request, prompt_ids=(1, 2, 3)) for request in _requests(6)]
    got = sample_all(sampler, requests, on_step=swap_after_three)
    for request, generation in zip(requests, got, strict=True):
        assert list(generation.token_ids) == _sample_through_a_swap(first, second, request, 3)
        assert generation.spans == (((0, 7), (3, 8)) if len(generation.token_ids) > 3 else ((0, 7),))
    again = sample_all(sampler, requests)
    assert [generation.spans for generation in again] == [((0, 8),)] * len(requests)
    assert [list(g.token_ids) for g in again] == [list(_sample_alone(second, r).token_ids) for r in requests]


def test_staging_leaves_the_policy() -> None:
    model, other = _model("gpt2"), _model("gpt2", seed=4)
    sampler = _sampler(model)
    before = flatten(model, layout_of(model, "float32"))
    weights = flatten(other, layout_of(other, "float32"))
    sampler.stage(weights, 1)
    assert flatten(model, layout_of(model, "float32")) == before
    weights[:4] = b"\x00\x00\xc0\x7f"  # NaN
    with pytest.raises(IntegrityError, match="not all finite"):
        sampler.stage(weights, 1)
    assert sample_all(sampler, _requests(2))


def test_staged_digest_is_the_weights_digest_in_the_same_dtype() -> None:
    model = _model("gpt2")
    layout = layout_of(model, "float32")
    weights = flatten(model, layout)
    assert _sampler(model).stage(weights, 1).answer == chunk_digest(bytes(weights))
    narrow = _sampler(model.bfloat16())  # words of 32 bits come in, words of 16 are held
    assert narrow.stage(weights, 1).answer == chunk_digest(bytes(flatten(model, layout_of(model, "bfloat16"))))
    narrow.swap(narrow.stage(weights, 1))


def test_failed_swap_stops_sampling_until_the_next_policy() -> None:
    model = _model("gpt2")
    policy = _policy(model)
    sampler, scorer = TransformersSampler(policy), TransformersScorer(policy)
    good = bytes(flatten(model, layout_of(model, "float32")))
    torn = flatten(_model("gpt2", seed=4), layout_of(model, "float32"))  # so much changes that all is copied
    staged = sampler.stage(torn, 2)
    torn[40] ^= 1  # as a file would be that moves on before it is read again
    with pytest.raises(IntegrityError, match="not those it was given"):
        sampler.swap(staged)
    for work in (lambda: sample_all(sampler, _requests(1)), lambda: scorer.replay(_requests(1), [[1]])):
        with pytest.raises(IntegrityError, match="no policy"):
            work()
    sampler.swap(sampler.stage(good, 3))
    assert sample_all(sampler, _requests(1))[0].spans[0] == (0, 3)


def test_huge_weights_fail_the_forward_pass() -> None:
    model = _model("gpt2")
    with torch.no_grad():
        model.transformer.wte.weight.fill_(3e38)
        model.transformer.h[0].mlp.c_fc.weight.fill_(3e38)
    sampler = _sampler(_model("gpt2", seed=4))
    with pytest.raises(IntegrityError, match="not finite"):
        sampler.swap(sampler.stage(flatten(model, layout_of(model, "float32")), 1))
    with pytest.raises(IntegrityError, match="no policy"):
        sample_all(sampler, _requests(1))
