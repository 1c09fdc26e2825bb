"""Dishonest samplers: each answers every request with what its name says, and the honest engine never notices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten, layout_of
from p2prl.sim.dishonest_samplers import WEIGHT_CHEATS, DishonestSampler
from p2prl.testing.adversaries import ADVERSARIES

TOKENS = 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def engine(seed: int = 1) -> TransformersSampler:
    model = tiny_model("chain4", seed=seed).model
    return TransformersSampler(PolicyModel(model, layout_of(model, "float32")))


def weights(seed: int) -> bytes:
    model = tiny_model("chain4", seed=seed).model
    return bytes(flatten(model, layout_of(model, "float32")))


REQUESTS = [
    GenerationRequest(prompt_ids=(1, 2, 3), seed=seed, max_new_tokens=TOKENS, temperature=1.0, stop_ids=frozenset({16}))
    for seed in range(12)
]


@pytest.mark.parametrize("name", sorted(ADVERSARIES))
def test_every_request_is_answered(name: str) -> None:
    sampler = ADVERSARIES[name](engine())
    made = sample_all(sampler, REQUESTS)
    honest = sample_all(engine(), REQUESTS)
    assert sampler.in_flight == 0
    assert all(len(each.token_ids) == len(each.logprobs) > 0 for each in made)
    if name == "stale-policy":
        assert made == honest
    else:
        assert repr(made) != repr(honest)
    if "log-probs" in name:
        assert [each.token_ids for each in made] == [each.token_ids for each in honest]


def test_a_stale_policy_is_never_replaced() -> None:
    sampler = ADVERSARIES["stale-policy"](engine(seed=3))
    for version in (1, 2):
        sampler.swap(sampler.stage(weights(version), version))
    assert sample_all(sampler, REQUESTS)[0].token_ids == sample_all(engine(seed=1), REQUESTS)[0].token_ids
    assert [e.token_ids for e in sample_all(sampler, REQUESTS)] == [
        e.token_ids for e in sample_all(engine(seed=1), REQUESTS)
    ]


@pytest.mark.parametrize("name", sorted(WEIGHT_CHEATS))
def test_changed_weights_are_near_or_far(name: str) -> None:
    change = WEIGHT_CHEATS[name].change
    assert change is not None
    own = torch.frombuffer(bytearray(weights(1)), dtype=torch.float32)
    other = torch.frombuffer(bytearray(change(weights(1))), dtype=torch.float32)
    distance = float((own - other).abs().mean() / own.abs().mean())
    least, most = {
        "int8 weights": (1e-3, 1e-2),
        "int4 weights": (3e-2, 0.2),
        "policy of 10 updates before": (5e-4, 5e-3),
        "policy of 100 updates before": (5e-3, 5e-2),
        "other checkpoint": (0.3, 2.0),
    }[name]
    assert least < distance < most


def test_a_canceled_request_is_forgotten() -> None:
    sampler = DishonestSampler(engine(), replace(WEIGHT_CHEATS["int8 weights"], change=None))
    sampler.submit(REQUESTS)
    assert sampler.in_flight == len(REQUESTS)
    sampler.cancel()
    assert sampler.in_flight == 0
    assert not sampler.step().ended
