"""Gradient in micro-batches: equal to the full batch for every loss, guard and penalty, and no row computed in vain."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from p2prl.algorithms.kl_penalty import ReferencePenaltyConfig
from p2prl.algorithms.loss_registry import LOSSES, build_loss
from p2prl.learner.training.loss_guards import GuardConfig
from p2prl.learner.training.loss_pipeline import Estimate, LossPipeline, LossPipelineConfig, Rollouts
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.policy_gradient import BatchLogprobs, backpropagate
from p2prl.learner.training.probation import ProbationConfig
from p2prl.models.logprobs.policy_logprobs import completion_logprobs
from tests.unit.models.small_decoders import difference, gemma2, gradients, qwen2, rows_of

GROUPS, SIZE = 3, 4
ROWS = rows_of(GROUPS * SIZE)
TOKENS = 30
"""Several micro-batches for these rows."""


def pipeline(loss: str = "gepo_t", **parts: Any) -> LossPipeline:
    return LossPipeline(LossPipelineConfig(objective=build_loss(loss, max_completion_tokens=9), **parts))


def rollouts(model: Any, rewards: Tensor | None = None) -> Rollouts:
    """Behavior and reference log-probs near the model's, trust from none to full."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        logprobs, mask = completion_logprobs(model, [row[0] for row in ROWS], [row[1] for row in ROWS], 1.0)
    shape = (GROUPS, SIZE, logprobs.shape[1])

    def near() -> Tensor:
        return (logprobs + 0.3 * torch.randn(logprobs.shape, generator=generator)).clamp(max=0.0).reshape(shape)

    return Rollouts(
        behavior_logprobs_BGT=near(),
        mask_BGT=mask.bool().reshape(shape),
        rewards_BG=torch.rand(GROUPS, SIZE, generator=generator) if rewards is None else rewards,
        staleness_BG=torch.tensor([[0] * SIZE, [3] * SIZE, [20] * SIZE]),
        trust_B=torch.tensor([1.0, 0.5, 0.0]),
        reference_logprobs_BGT=near(),
    )


def gradient(model: Any, loss: LossPipeline, batch: Rollouts, rule: MicroBatchRule) -> tuple[Tensor, Estimate]:
    model.zero_grad()
    policy = BatchLogprobs(model, temperature=1.0)
    return backpropagate(policy, ROWS, rule, lambda flat, _: loss.estimate(flat.reshape(batch.mask_BGT.shape), batch))


def full_batch(model: Any, loss: LossPipeline, batch: Rollouts) -> Estimate:
    """One forward pass, the loss, one backward pass."""
    model.zero_grad()
    logprobs, _ = completion_logprobs(model, [row[0] for row in ROWS], [row[1] for row in ROWS], 1.0)
    estimate = loss.estimate(logprobs.reshape(batch.mask_BGT.shape), batch)
    estimate.loss.backward()  # type: ignore[no-untyped-call]
    return estimate


def assert_equal_to_full_batch(model: Any, batch: Rollouts, rule: MicroBatchRule, loss: str, **parts: Any) -> None:
    expected = full_batch(model, pipeline(loss, **parts), batch)
    wanted = gradients(model)
    _, found = gradient(model, pipeline(loss, **parts), batch, rule)
    assert float(found.loss.detach()) == pytest.approx(float(expected.loss.detach()), rel=1e-5, abs=1e-7)
    assert difference(gradients(model), wanted) < 1e-5


@pytest.mark.parametrize("loss", LOSSES.names())
def test_every_loss_has_the_gradient_of_the_full_batch(loss: str) -> None:
    model = qwen2()
    assert_equal_to_full_batch(model, rollouts(model), MicroBatchRule(tokens=TOKENS), loss)


@pytest.mark.parametrize(
    "parts",
    [
        {"guards": GuardConfig(kl_brake=0.01, vcpo=True, second_moment=0.05, negative_tail=0.05)},
        {"probation": ProbationConfig(probation_groups=4, cap=0.5, max_rise_nats=0.2)},
        {"probation": ProbationConfig(probation_groups=4), "probation_loss": build_loss("asympo")},
        {"reference": ReferencePenaltyConfig(beta=0.5)},
    ],
)
def test_guards_probation_and_the_reference_penalty_do_too(parts: dict[str, Any]) -> None:
    model = qwen2()
    assert_equal_to_full_batch(model, rollouts(model), MicroBatchRule(tokens=TOKENS), "grpo", **parts)


@pytest.mark.parametrize("tokens", [1, 12, 10_000])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_any_split_gives_that_gradient(tokens: int, checkpointing: bool) -> None:
    model = qwen2(vocabulary=5003)  # two tiles of words
    rule = MicroBatchRule(tokens=tokens, checkpointing=checkpointing)
    assert_equal_to_full_batch(model, rollouts(model), rule, "gspo")


def test_a_model_with_capped_logits_has_that_gradient() -> None:
    model = gemma2()
    assert_equal_to_full_batch(model, rollouts(model), MicroBatchRule(tokens=TOKENS), "gepo_t")


def test_the_plain_path_is_the_full_batch_to_the_bit() -> None:
    model = qwen2()
    batch = rollouts(model)
    full_batch(model, pipeline(), batch)
    expected = gradients(model)
    gradient(model, pipeline(), batch, MicroBatchRule(tokens=10_000))
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), expected, strict=True))


@pytest.mark.parametrize("tied", [True, False])
def test_parts_are_as_near_the_exact_gradient_as_the_full_batch(tied: bool) -> None:
    model = qwen2(vocabulary=5003, tied=tied)
    batch = rollouts(model)
    exact = copy.deepcopy(model).double()
    doubles: dict[str, Any] = {
        each.name: value.double()
        for each in fields(batch)
        if isinstance(value := getattr(batch, each.name), Tensor) and value.is_floating_point()
    }
    full_batch(exact, pipeline(), replace(batch, **doubles))
    wanted = [each.float() for each in gradients(exact)]
    full_batch(model, pipeline(), batch)
    most = 2 * difference(gradients(model), wanted)
    gradient(model, pipeline(), batch, MicroBatchRule(tokens=TOKENS))
    assert difference(gradients(model), wanted) < most < 1e-5


@contextmanager
def computed_rows(model: Any) -> Iterator[list[tuple[int, bool]]]:
    """(rows, whether with a graph) of every forward pass inside the block."""
    seen: list[tuple[int, bool]] = []
    handle = model.base_model.register_forward_pre_hook(
        lambda _, __, arguments: seen.append((len(arguments["input_ids"]), torch.is_grad_enabled())), with_kwargs=True
    )
    yield seen
    handle.remove()


def test_rows_without_advantage_are_not_computed_again() -> None:
    model = qwen2()
    rewards = torch.tensor([[1.0] * SIZE, [0.0, 1.0, 0.0, 1.0], [0.0] * SIZE])
    batch = replace(rollouts(model, rewards), trust_B=torch.ones(GROUPS))
    policy = BatchLogprobs(model, temperature=1.0)
    loss = pipeline("reinforce")
    with computed_rows(model) as seen:
        backpropagate(
            policy,
            ROWS,
            MicroBatchRule(tokens=1),
            lambda flat, _: loss.estimate(flat.reshape(batch.mask_BGT.shape), batch),
        )
    scored_without_graph = sum(rows for rows, graph in seen if not graph)
    with_graph = sum(rows for rows, graph in seen if graph)
    # The last micro-batch of the first pass has a graph; of the rest only the middle group's rows do.
    assert scored_without_graph == len(ROWS) - 1
    assert with_graph in (SIZE, SIZE + 1)
    assert_equal_to_full_batch(model, batch, MicroBatchRule(tokens=TOKENS), "reinforce")


def test_a_batch_of_one_micro_batch_is_computed_once() -> None:
    model = qwen2(vocabulary=151_936)  # too many logits for the plain path
    batch = rollouts(model)
    policy = BatchLogprobs(model, temperature=1.0)
    with computed_rows(model) as seen:
        backpropagate(
            policy,
            ROWS,
            MicroBatchRule(tokens=10_000),
            lambda flat, _: pipeline().estimate(flat.reshape(batch.mask_BGT.shape), batch),
        )
    assert seen == [(len(ROWS), True)]


def test_a_batch_without_any_advantage_gives_zeros() -> None:
    model = qwen2()
    batch = rollouts(model, torch.ones(GROUPS, SIZE))
    gradient(model, pipeline(), batch, MicroBatchRule(tokens=TOKENS))
    assert all(not bool(each.any()) for each in gradients(model))


def test_scores_without_gradient_are_those_of_the_gradient_pass() -> None:
    model = qwen2()
    rule = MicroBatchRule(tokens=TOKENS)
    batch = rollouts(model)
    logprobs, _ = gradient(model, pipeline(), batch, rule)
    assert torch.equal(BatchLogprobs(model, temperature=1.0).logprobs(ROWS, rule), logprobs)
    with torch.no_grad():
        expected, _ = completion_logprobs(model, [row[0] for row in ROWS], [row[1] for row in ROWS], 1.0)
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
