"""Sampler, scorer and policy switch on a CUDA card: the defined draws, honest replays, and weights to the bit."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from p2prl.config.device_checkup import check_device
from p2prl.errors import IntegrityError
from p2prl.models.engines.transformers import row_draws
from p2prl.models.engines.transformers.batching import DEFAULT_BATCH_TOKENS
from p2prl.models.engines.transformers.policy_model import PolicyModel, _ComparedWeights
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.engines.transformers.slot_decoder import SlotDecoder
from p2prl.models.replay.prefix_replay import PREFIX_TOKENS
from p2prl.models.replay_statistics.baselines import own_band
from p2prl.models.replay_statistics.judge import TokenScores, judge_group
from p2prl.models.replay_statistics.noise import noise_scale, widest_scale
from p2prl.models.sampler_port import Generation, GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.scorer_port import Scorer
from p2prl.models.seeded_draw.draw import _draws_on, card_draw, draw_with_logprobs
from p2prl.models.seeded_draw.gumbel_noise import gumbel
from p2prl.models.weights import host_memory
from p2prl.models.weights import layout as weight_layout
from p2prl.models.weights.host_memory import HostMemory
from p2prl.models.weights.layout import (
    NUMPY_WORDS,
    TORCH_DTYPES,
    WeightLayout,
    flatten,
    held_digest,
    layout_of,
    weight_blocks,
    weights_digest,
)
from tests.unit.models.small_decoders import gemma2, gpt2, wide_qwen2

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")

if torch.cuda.is_available():
    from p2prl.models.seeded_draw.card_draw import draw_on_card

CARD, CPU = torch.device("cuda"), torch.device("cpu")
BUILDERS: dict[str, Callable[[], Any]] = {"qwen2": wide_qwen2, "gpt2": gpt2, "gemma2": gemma2}
DTYPES = ("float32", "bfloat16")


def policy_on(device: torch.device, dtype: str, kind: str = "qwen2") -> PolicyModel:
    model = BUILDERS[kind]().to(device, TORCH_DTYPES[dtype])
    return PolicyModel(model, layout_of(model, dtype))


def requests_of(count: int = 16, *, tokens: int = 24, temperature: float = 1.0) -> list[GenerationRequest]:
    """Groups of four with a prompt each, of different lengths."""
    return [
        GenerationRequest(
            prompt_ids=tuple((7 * (i // 4) + 3 * j) % 299 + 1 for j in range(3 + i // 4)),
            seed=(i + 1) * 0x1234_5678_9ABC_DEF % 2**63,
            max_new_tokens=tokens,
            temperature=temperature,
            stop_ids=frozenset({0}),
        )
        for i in range(count)
    ]


def scores(scorer: Scorer, requests: Sequence[GenerationRequest], made: Sequence[Generation]) -> TokenScores:
    """The tokens as a learner replays them; the claimed log-probs have travelled as float16."""
    rows = scorer.replay(requests, [each.token_ids for each in made])
    margins, logprobs, best_logprobs, sizes = (
        np.concatenate([np.asarray(getattr(row, name), dtype=np.float64) for row in rows])
        for name in ("margins", "logprobs", "best_logprobs", "sizes")
    )
    claimed = np.concatenate([np.asarray(each.logprobs, dtype=np.float16).astype(np.float64) for each in made])
    return TokenScores(margins=margins, logprobs=logprobs, best_logprobs=best_logprobs, sizes=sizes, claimed=claimed)


def verdict(scorer: Scorer, requests: Sequence[GenerationRequest], made: Sequence[Generation], dtype: str) -> str:
    """Why a learner would refuse these tokens; empty if it would not."""
    tokens, temperature = scores(scorer, requests, made), requests[0].temperature
    scale = noise_scale(
        claimed_dtype=dtype,
        run_dtype=dtype,
        scorer_dtype=scorer.engine_class.dtype,
        layers=scorer.layers,
        measured=own_band(tokens, temperature),
    )
    return judge_group(tokens, scale, widest_scale(scorer.layers), temperature).reason


@contextmanager
def little_memory(extra_bytes: int) -> Iterator[None]:
    """Within this block the process may reserve this much more of the card."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(CARD).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(CARD) + extra_bytes) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


# --- draws ------------------------------------------------------------------------------------------------------------


def test_the_card_passes_the_checkup_of_doctor_and_join() -> None:
    found = check_device(CARD.type)
    assert found["verdict"] == "fits", found


_CONFINED = """
import sys
from pathlib import Path
from p2prl.confinement.role_confinement import confine_calls, confine_files
protection = confine_files(Path(sys.argv[1]))
from p2prl.models.hardware.device_choice import open_device
open_device(sys.argv[2])
from p2prl.config.device_checkup import check_device
protection = confine_calls(protection)
print(check_device(sys.argv[2])["verdict"], bool(protection.calls))
"""


def test_a_confined_worker_computes_on_the_card(tmp_path: Path) -> None:
    """The steps of `p2prl join`: files first, then the card, then system calls."""
    done = subprocess.run(
        [sys.executable, "-c", _CONFINED, str(tmp_path), CARD.type],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[4],
        timeout=100,
        check=False,
    )
    assert done.stdout.split() == ["fits", "True"], done.stderr


@pytest.mark.parametrize("vocabulary", [18, 5000, 151_936])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_draw_on_the_card_is_the_defined_one(dtype: torch.dtype, vocabulary: int) -> None:
    assert _draws_on(CARD.type), "the card's own arithmetic is close enough: no slow way is taken"
    assert card_draw(CARD) is draw_on_card, "no token waits for the card"
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (3 * torch.randn(12, vocabulary, generator=generator)).to(dtype)
    logits[1:3, ::3] = -torch.inf
    temperatures = torch.linspace(0.3, 1.7, 12)
    seeds, positions = torch.arange(12) * 0x1234_5678_9ABC_DEF, torch.arange(12) * 97
    tokens, logprobs = draw_with_logprobs(logits.to(CARD), temperatures, seeds, positions)
    scaled = logits.float() / temperatures[:, None]
    wanted = (scaled + gumbel(seeds, positions[:, None], vocabulary)[:, 0]).argmax(dim=-1)
    assert tokens.device.type == CARD.type
    assert tokens.tolist() == wanted.tolist()
    picked = torch.log_softmax(scaled.double(), dim=-1).gather(1, wanted[:, None])[:, 0]
    assert logprobs.tolist() == pytest.approx(picked.tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", list(BUILDERS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sampler_draws_what_its_own_logits_demand(dtype: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def checked(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        made = draw_with_logprobs(logits, temperatures, seeds, positions)
        scaled = logits.float().cpu() / temperatures[:, None]
        wanted = (scaled + gumbel(seeds, positions[:, None], logits.shape[1])[:, 0]).argmax(dim=-1)
        assert made[0].tolist() == wanted.tolist()
        drawn.extend(made[0].tolist())
        return made

    monkeypatch.setattr(row_draws, "draw_with_logprobs", checked)
    monkeypatch.setattr(row_draws, "_SMALL", 0)
    sampler = TransformersSampler(policy_on(CARD, dtype, kind), capture=False)
    made = sample_all(sampler, requests_of(temperature=0.8))
    assert isinstance(sampler._decoder, SlotDecoder)
    assert len(drawn) >= sum(len(each.token_ids) for each in made) > 16


# --- replays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scorer_on", [CARD, CPU], ids=["card", "cpu"])
@pytest.mark.parametrize("kind", list(BUILDERS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_honest_groups_pass_and_an_edited_token_is_found(dtype: str, kind: str, scorer_on: torch.device) -> None:
    requests = requests_of()
    made = sample_all(TransformersSampler(policy_on(CARD, dtype, kind)), requests)
    scorer = TransformersScorer(policy_on(scorer_on, dtype, kind))
    for start in range(0, len(made), 4):
        group = slice(start, start + 4)
        assert verdict(scorer, requests[group], made[group], dtype) == ""
    row = max(range(4), key=lambda i: len(made[i].token_ids))
    ids = list(made[row].token_ids)
    assert len(ids) > PREFIX_TOKENS
    ids[2] = ids[2] % 298 + 1
    edited = [*made[:row], replace(made[row], token_ids=tuple(ids)), *made[row + 1 : 4]]
    assert verdict(scorer, requests[:4], edited, dtype) != ""


def test_long_prompts_and_probes_are_scored_alike_on_both_devices() -> None:
    """A prompt that rows share is computed once, and long rows take other kernels of attention."""
    prompt = tuple(i % 299 + 1 for i in range(300))
    requests = [replace(request, prompt_ids=prompt) for request in requests_of(8)]
    made = sample_all(TransformersSampler(policy_on(CARD, "float32")), requests)
    ids, probes = [each.token_ids for each in made], [(1, 2, 3, 4)] * len(made)
    card, cpu = (
        TransformersScorer(policy_on(device, "float32")).replay(requests, ids, probes) for device in (CARD, CPU)
    )
    for one, other in zip(card, cpu, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
        assert one.probe_logprobs == pytest.approx(other.probe_logprobs, abs=1e-3)
        assert one.sizes == pytest.approx(other.sizes, rel=1e-3)


# --- switches of the policy -------------------------------------------------------------------------------------------


def changed(weights: bytes, dtype: str, share: float, seed: int = 0) -> bytearray:
    """The same words but for a share of them: one unit in the last place away, or of the other sign."""
    words = np.frombuffer(weights, dtype=NUMPY_WORDS[dtype]).copy()
    generator = np.random.default_rng(seed)
    places = generator.choice(words.size, int(share * words.size), replace=False)
    words[places] ^= 1
    words[places[::7]] ^= words.dtype.type(1 << 8 * words.itemsize - 1)
    return bytearray(words.tobytes())


@pytest.mark.parametrize("share", [0.001, 0.03, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_switch_in_place_equals_a_whole_load(dtype: str, share: float) -> None:
    policy = policy_on(CARD, dtype)
    layout = layout_of(policy.model, dtype)
    wanted = changed(bytes(flatten(policy.model, layout)), dtype, share)
    staged = policy.stage(wanted, 5)
    assert isinstance(staged, _ComparedWeights)
    assert (staged.changes is not None) == (share < 1 / 32)
    policy.swap(staged)
    whole = policy_on(CARD, dtype)
    whole.load(wanted)
    assert flatten(policy.model, layout) == flatten(whole.model, layout) == wanted
    assert held_digest(policy.model, layout) == weights_digest(wanted)
    prompt = torch.arange(9, device=CARD)[None]
    with torch.inference_mode():
        logits = [each.forward(prompt, cache=None, keep=9) for each in (policy, whole)]
    assert torch.equal(*logits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_policies_that_are_not_finite_are_refused(dtype: str) -> None:
    policy = policy_on(CARD, dtype)
    layout = layout_of(policy.model, dtype)
    before = bytes(flatten(policy.model, layout))
    words = np.frombuffer(before, dtype=NUMPY_WORDS[dtype]).copy()
    words[-3] = np.array(float("nan"), dtype="<f4").view("<u4") >> (32 - 8 * words.itemsize)
    with pytest.raises(IntegrityError, match="not all finite"):
        policy.stage(words.tobytes(), 2)
    assert flatten(policy.model, layout) == before
    words[:] = np.array(3e38, dtype="<f4").view("<u4") >> (32 - 8 * words.itemsize)
    with pytest.raises(IntegrityError, match="logits that are not finite"):
        policy.swap(policy.stage(words.tobytes(), 3))
    with pytest.raises(IntegrityError, match="no policy"):
        policy.check_ready(())
    policy.load(before)
    assert flatten(policy.model, layout) == before


@pytest.mark.parametrize("share", [0.03, 0.5])
def test_twenty_switches_hold_no_more_memory_than_one(share: float) -> None:
    policy = policy_on(CARD, "bfloat16")
    sampler = TransformersSampler(policy)
    layout = layout_of(policy.model, "bfloat16")
    first = bytes(flatten(policy.model, layout))
    versions = (changed(first, "bfloat16", share), bytearray(first))
    held = []
    for number in range(20):
        sampler.swap(sampler.stage(versions[number % 2], number))
        sample_all(sampler, requests_of(4, tokens=4))
        held.append(torch.cuda.memory_allocated(CARD))
    assert held[-1] == held[3]


def test_a_policy_is_staged_by_another_thread_while_this_one_samples() -> None:
    sampler = TransformersSampler(policy_on(CARD, "bfloat16"))
    layout: WeightLayout = sampler._policy._layout
    requests = requests_of(8, tokens=64)
    alone = sample_all(sampler, requests)
    wanted = changed(bytes(flatten(sampler._policy.model, layout)), "bfloat16", 0.02)
    staged: list[Any] = []
    thread = threading.Thread(target=lambda: staged.append(sampler.stage(wanted, 7)))
    thread.start()
    beside = sample_all(sampler, requests)
    thread.join()
    assert [each.token_ids for each in beside] == [each.token_ids for each in alone], "nothing is switched yet"
    sampler.swap(staged[0])
    assert flatten(sampler._policy.model, layout) == wanted


def test_sleep_gives_the_memory_back_and_a_switch_takes_it_again() -> None:
    policy = policy_on(CARD, "float32")
    sampler = TransformersSampler(policy)
    layout = layout_of(policy.model, "float32")
    weights = bytes(flatten(policy.model, layout))
    before = sample_all(sampler, requests_of(4))
    held = torch.cuda.memory_allocated(CARD)
    sampler.sleep()
    assert torch.cuda.memory_allocated(CARD) <= held - layout.size_bytes
    sampler.swap(sampler.stage(weights, 2))
    assert flatten(policy.model, layout) == weights
    assert [each.token_ids for each in sample_all(sampler, requests_of(4))] == [each.token_ids for each in before]


# --- memory, and what is published ------------------------------------------------------------------------------------


def test_sampling_goes_on_with_fewer_rows_when_the_card_is_full() -> None:
    prompt = tuple(i % 299 + 1 for i in range(600))
    requests = [replace(request, prompt_ids=prompt, stop_ids=frozenset()) for request in requests_of(128, tokens=8)]
    policy = policy_on(CARD, "float32")
    sampler = TransformersSampler(policy)
    sample_all(sampler, requests[:2])  # libraries have taken what they need
    sampler._decoder.clear()
    with little_memory(100_000_000):  # keys and values of 128 rows take 160 MB
        made = sample_all(sampler, requests)
    assert sampler.room <= 64
    assert all(len(each.token_ids) == 8 for each in made)
    assert verdict(TransformersScorer(policy), requests, made, "float32") == ""


def test_a_replay_goes_on_in_smaller_batches_when_the_card_is_full() -> None:
    requests = [
        replace(request, prompt_ids=tuple((i + n) % 299 + 1 for i in range(400)))
        for n, request in enumerate(requests_of(32, tokens=4))
    ]
    policy = policy_on(CARD, "float32")
    made = sample_all(TransformersSampler(policy), requests)
    scorer = TransformersScorer(policy)
    ids = [each.token_ids for each in made]
    roomy = scorer.replay(requests, ids)
    with little_memory(60_000_000):
        tight = scorer.replay(requests, ids)
    assert scorer._max_batch_tokens < DEFAULT_BATCH_TOKENS
    for one, other in zip(tight, roomy, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


@pytest.mark.parametrize("published", DTYPES)
@pytest.mark.parametrize("held", DTYPES)
def test_a_snapshot_of_the_card_is_the_model_rounded_as_on_a_cpu(held: str, published: str) -> None:
    model = wide_qwen2().to(TORCH_DTYPES[held])
    layout = layout_of(model, published)
    wanted = bytes(flatten(model, layout))
    on_card = model.to(CARD)
    memory = bytearray(layout.size_bytes)
    assert flatten(on_card, layout, memory) == wanted
    assert b"".join(block.tobytes() for block in weight_blocks(on_card, layout)) == wanted
    tensors: list[Tensor] = [parameter.detach().cpu().view(-1) for parameter in on_card.parameters()]
    rounded = torch.cat(tensors).to(TORCH_DTYPES[published])
    assert rounded.view(torch.uint8).numpy().tobytes() == wanted


# --- copies to the host -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("pinned", [False, True])
def test_weights_come_to_the_host_as_the_host_would_round_them(
    dtype: str, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_layout, "_CARD_BLOCK_WORDS", 1000)  # no tensor of the model is a whole number of blocks
    model = wide_qwen2()
    layout = layout_of(model, dtype)
    wanted = bytes(flatten(model, layout))
    model.to(CARD)
    if not pinned:
        assert flatten(model, layout) == wanted
        return
    memory = HostMemory(layout.size_bytes, CARD)
    assert memory.is_pinned
    for _ in range(2):
        assert flatten(model, layout, memory.data) == wanted
        memory.data[:] = bytes(layout.size_bytes)


def test_memory_that_cannot_be_pinned_stays_pageable_and_the_card_goes_on() -> None:
    memory = HostMemory(1 << 16, CARD)
    assert not host_memory._pin(memory.data, CARD), "it is pinned already"
    assert int(torch.ones(3, device=CARD).sum()) == 3
    del memory
