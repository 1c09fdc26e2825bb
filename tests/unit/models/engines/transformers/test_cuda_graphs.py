"""Decoding with CUDA graphs on a card: the tokens of decoding without, through swaps, sleep, joins and failures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.engines.transformers.slot_decoder import SlotDecoder
from p2prl.models.sampler_port import Generation, GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.seeded_draw.gumbel_noise import gumbel
from p2prl.models.weights.layout import flatten, layout_of
from tests.unit.models.engines.test_cuda import BUILDERS, CARD, DTYPES, changed, policy_on, requests_of, scores

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")

if torch.cuda.is_available():
    from p2prl.models.seeded_draw.card_draw import draw_on_card


def pair(policy: PolicyModel, **options: Any) -> tuple[TransformersSampler, TransformersSampler]:
    """A sampler with graphs and one without."""
    return TransformersSampler(policy, **options), TransformersSampler(policy, capture=False, **options)


def graphs(sampler: TransformersSampler) -> int:
    """Steps recorded; -1 when the sampler does without."""
    decoder = sampler._decoder
    assert isinstance(decoder, SlotDecoder)
    return -1 if decoder._graphs is None else decoder._graphs.count


def tokens(made: Sequence[Generation]) -> list[tuple[int, ...]]:
    return [each.token_ids for each in made]


def uneven_requests(count: int = 72) -> list[GenerationRequest]:
    """Completions that end at different times, many by a stop token."""
    stops = frozenset(range(0, 299, 40))
    return [
        replace(request, max_new_tokens=3 + 11 * i % 90, stop_ids=stops if i % 3 else frozenset())
        for i, request in enumerate(requests_of(count))
    ]


def test_a_captured_draw_takes_what_its_tensors_hold_then() -> None:
    vocabulary, count = 5000, 64
    generator = torch.Generator().manual_seed(5)
    logits = 4 * torch.randn(3, count, vocabulary, generator=generator)
    logits[1, ::2] = 1e8  # ties
    temperatures, seeds = torch.full((count,), 0.7), torch.arange(count) * 0x1234_5678_9ABC_DEF
    held, positions = logits[0].to(CARD), torch.zeros(count, dtype=torch.int64, device=CARD)
    rows = (temperatures.to(CARD), seeds.to(CARD), positions)
    draw_on_card(held, *rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens, logprobs = draw_on_card(held, *rows)
    for step, part in enumerate(logits):
        held.copy_(part)
        positions.fill_(step)
        graph.replay()
        scaled = part / temperatures[:, None]
        wanted = (scaled + gumbel(seeds, torch.full((count, 1), step), vocabulary)[:, 0]).argmax(dim=-1)
        assert tokens.tolist() == wanted.tolist()
        picked = torch.log_softmax(scaled.double(), dim=-1).gather(1, wanted[:, None])[:, 0]
        assert logprobs.tolist() == pytest.approx(picked.tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", list(BUILDERS))
def test_rows_that_join_and_leave_get_the_tokens_of_plain_decoding(kind: str) -> None:
    captured, plain = pair(policy_on(CARD, "float32", kind), most_rows=20)
    made, wanted = (sample_all(sampler, uneven_requests()) for sampler in (captured, plain))
    assert tokens(made) == tokens(wanted)
    for one, other in zip(made, wanted, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.finished == other.finished
    assert graphs(captured) > 0
    assert graphs(plain) == -1


def test_sixteen_bits_are_as_near_to_the_scorer_as_without_graphs() -> None:
    policy = policy_on(CARD, "bfloat16")
    requests = requests_of(64, tokens=48)
    off = []
    for sampler in pair(policy):
        found = scores(TransformersScorer(policy), requests, sample_all(sampler, requests))
        off.append((found.margins > 0).mean())
    assert off[0] <= off[1] + 0.01


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_graph_samples_the_policy_that_is_there(dtype: str) -> None:
    """Through swaps in mid-flight, which keep the graphs, and through sleep, which drops them."""
    policy = policy_on(CARD, dtype)
    layout = layout_of(policy.model, dtype)
    first = bytes(flatten(policy.model, layout))
    second = bytes(changed(first, dtype, 0.5))
    requests = [replace(request, stop_ids=frozenset()) for request in requests_of(16, tokens=30)]

    def sampled(sampler: TransformersSampler) -> list[Generation]:
        steps = 0

        def swap(_: int) -> None:
            nonlocal steps
            steps += 1
            if steps in (7, 15):
                sampler.swap(sampler.stage(second if steps == 7 else first, steps))

        return sample_all(sampler, requests, on_step=swap)

    captured, plain = pair(policy)
    sample_all(captured, requests)
    kept = graphs(captured)
    made = sampled(captured)
    assert graphs(captured) == kept
    policy.load(first)
    # Tokens come one step later than without graphs, so a swap after a step concerns the one after the next.
    assert [version for _, version in made[0].spans][-2:] == [7, 15]
    start = made[0].spans[-2][0]
    policy.load(first)
    alone = sample_all(plain, requests)
    assert [each.token_ids[:start] for each in alone] == [each.token_ids[:start] for each in made]
    assert tokens(alone) != tokens(made), "the second policy sampled something else"
    captured.sleep()
    captured.swap(captured.stage(first, 20))
    again = sample_all(captured, requests)
    assert tokens(again) == tokens(alone)
    assert graphs(captured) > 0


def test_a_model_that_reads_from_the_card_is_decoded_without_graphs() -> None:
    policy = policy_on(CARD, "float32")
    wanted = sample_all(TransformersSampler(policy, capture=False), requests_of())

    def read(module: Any, inputs: Any, output: Tensor) -> None:
        assert float(output.sum()) == float(output.sum())

    hook = policy.model.model.layers[0].mlp.register_forward_hook(read)
    reading = TransformersSampler(policy)
    assert tokens(sample_all(reading, requests_of())) == tokens(wanted)
    assert graphs(reading) == -1
    hook.remove()
    after = TransformersSampler(policy)
    assert tokens(sample_all(after, requests_of())) == tokens(wanted)
    assert graphs(after) > 0, "a recording that failed spoils none that follow"


def test_a_confined_worker_records_its_steps(tmp_path: Path) -> None:
    """Its kernels are compiled beforehand, at the first start alone; it starts nothing, and cannot change them."""
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "tests.unit.models.confined_decoding", str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[5],
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        said.append(len(found["said"]))
        assert found["draws_on_card"], done.stderr
        assert not found["starts_programs"]
        assert not found["writes_kernels"]
        assert found["float32"]["graphs"] > 0
        assert found["bfloat16"]["graphs"] > 0
        assert found["float32"]["same"] == found["float32"]["of"]
    assert said == [1, 0]
