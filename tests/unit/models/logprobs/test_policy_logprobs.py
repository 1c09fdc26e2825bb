"""The training forward pass against the engine's log-probs and against one row at a time in float64."""

from __future__ import annotations

import pytest
import torch

from p2prl.errors import LocalProtocolError
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.logprobs.policy_logprobs import completion_logprobs
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of

PROMPTS = [(1, 2, 3), (4, 5), (6, 7, 8, 9, 10), (1, 2, 3)]


@pytest.mark.parametrize("prompts", [PROMPTS, [(1, 2, 3)] * 4])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_the_engines(prompts: list[tuple[int, ...]], temperature: float) -> None:
    model = tiny_model(seed=5).model
    with torch.no_grad():
        model.transformer.wte.weight.mul_(3.0)
    requests = [
        GenerationRequest(
            prompt_ids=prompt, seed=i, max_new_tokens=4 + i, temperature=temperature, stop_ids=frozenset({16})
        )
        for i, prompt in enumerate(prompts)
    ]
    made = sample_all(TransformersSampler(PolicyModel(model, layout_of(model, "float32"))), requests)
    policy_logprobs, mask = completion_logprobs(model, prompts, [a.token_ids for a in made], temperature)
    assert policy_logprobs.shape == mask.shape == (4, max(len(a.token_ids) for a in made))
    for row, covered, generation in zip(policy_logprobs.tolist(), mask.tolist(), made, strict=True):
        size = len(generation.token_ids)
        assert row[:size] == pytest.approx(generation.logprobs, abs=1e-5)
        assert row[size:] == [0.0] * (len(row) - size)
        assert covered == [1.0] * size + [0.0] * (len(row) - size)


def test_gradients_equal_those_of_single_rows() -> None:
    model = tiny_model(seed=6).model.double()
    completions = [(3, 1), (4, 1, 5), (9,), (2, 6, 5, 3)]
    weights = [0.5, -1.0, 2.0, 0.25]

    policy_logprobs, _ = completion_logprobs(model, PROMPTS, completions, 1.3)
    (policy_logprobs.sum(1) * torch.tensor(weights)).sum().backward()  # type: ignore[no-untyped-call]
    batched = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for prompt, completion, weight in zip(PROMPTS, completions, weights, strict=True):
        logits = model(input_ids=torch.tensor([[*prompt, *completion]]), use_cache=False).logits[
            0, len(prompt) - 1 : -1
        ]
        logprobs = torch.log_softmax(logits / 1.3, -1)[range(len(completion)), completion]
        (weight * logprobs.sum()).backward()  # type: ignore[no-untyped-call]
    for made, parameter in zip(batched, model.parameters(), strict=True):
        torch.testing.assert_close(made, parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("prompts", "completions"), [([], []), ([(1,)], []), ([()], [(1,)]), ([(1,)], [()])])
def test_mismatched_rows_are_a_local_error(prompts: list[tuple[int]], completions: list[tuple[int]]) -> None:
    with pytest.raises(LocalProtocolError):
        completion_logprobs(tiny_model().model, prompts, completions, 1.0)
