"""The value head of a run: gradients as autograd has them, checkpoints to the bit, and nothing of it in the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from p2prl.algorithms.loss_registry import build_loss
from p2prl.algorithms.ppo import gae
from p2prl.errors import ConfigError, LocalProtocolError, MachineError
from p2prl.learner.training.local_update_engine import LocalEngine, make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline, LossPipelineConfig, Rollouts
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.optimizer_step import Trainer
from p2prl.learner.training.policy_gradient import BatchLogprobs, backpropagate
from p2prl.learner.training.training_group import TrainingGroup, step_rewards_of, training_group
from p2prl.learner.training.value_head import TokenValues, ValueHead, ValueHeadConfig
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.logprobs.policy_logprobs import completion_logprobs
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of
from tests.unit.models.small_decoders import difference, gemma2, gradients, qwen2, rows_of

CPU = torch.device("cpu")
GROUPS, SIZE = 2, 3
ROWS = rows_of(GROUPS * SIZE)
VALUE = ValueHeadConfig(weight=0.7, clip=0.2, gae_lambda=0.8, learning_rate=0.01)
PROMPT, RIGHT, WRONG = (14, 1, 2), (3, 4, 5), (6, 7)


def pipeline(value: ValueHeadConfig = VALUE) -> LossPipeline:
    return LossPipeline(LossPipelineConfig(objective=build_loss("ppo"), value=value))


def head_with_opinions(hidden: int) -> ValueHead:
    """A head that has moved away from zero, and from its average."""
    head = ValueHead(hidden, VALUE, CPU)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        for parameter in head.parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        head.step(20.0)
    head.zero_gradients()
    return head


def direct(model: Any, head: ValueHead) -> tuple[Tensor, Tensor, Tensor]:
    """(values, average's values, log-probs) of each row's tokens, by whole rows and plain autograd."""
    values, averages, logprobs = [], [], []
    for prompt, completion in ROWS:
        ids = torch.tensor([[*prompt, *completion]])
        states = model.base_model(ids).last_hidden_state[0, len(prompt) - 1 : -1]
        logits = model.get_output_embeddings()(states)
        logprobs.append(torch.log_softmax(logits, -1).gather(1, torch.tensor(completion)[:, None])[:, 0])
        scaled = states / (states.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        weight, bias = head.parameters
        values.append((scaled * weight).sum(-1) / len(weight) ** 0.5 + bias)
        averages.append(head.average(states))
    pad = torch.nn.utils.rnn.pad_sequence
    return tuple(pad(rows, batch_first=True) for rows in (values, averages, logprobs))  # type: ignore[return-value]


def rollouts_of(logprobs: Tensor) -> Rollouts:
    generator = torch.Generator().manual_seed(8)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row[1])) for row in ROWS], batch_first=True).bool()
    shape = (GROUPS, SIZE, mask.shape[1])
    groups = [
        training_group((1,), tuple(tuple(row[1]) for row in ROWS[b * SIZE : (b + 1) * SIZE]), (), (0.0, 1.0, 0.5), 0)
        for b in range(GROUPS)
    ]
    noise = 0.3 * torch.randn(logprobs.shape, generator=generator)
    return Rollouts(
        behavior_logprobs_BGT=(logprobs.detach() + noise).clamp(max=0.0).reshape(shape),
        mask_BGT=mask.reshape(shape),
        rewards_BG=torch.tensor([[0.0, 1.0, 0.5]] * GROUPS),
        staleness_BG=torch.zeros(GROUPS, SIZE),
        trust_B=torch.ones(GROUPS),
        steps=step_rewards_of(groups, CPU),
    )


@pytest.mark.parametrize("tokens", [12, 10_000])
def test_gradient_in_micro_batches_is_that_of_the_whole_batch(tokens: int) -> None:
    model, head = qwen2(), head_with_opinions(16)
    values, averages, logprobs = direct(model, head)
    batch = rollouts_of(logprobs)
    shape = batch.mask_BGT.shape
    whole = TokenValues(values, averages).shaped(shape)
    model.zero_grad()
    expected = pipeline().estimate(logprobs.reshape(shape), batch, values=whole)
    expected.loss.backward()  # type: ignore[no-untyped-call]
    wanted, wanted_head = gradients(model), [each.grad.clone() for each in head.parameters if each.grad is not None]
    assert len(wanted_head) == 2
    model.zero_grad()
    head.zero_gradients()
    found_logprobs, found = backpropagate(
        BatchLogprobs(model, temperature=1.0, value=head),
        ROWS,
        MicroBatchRule(tokens=tokens),
        lambda flat, each: pipeline().estimate(
            flat.reshape(shape), batch, values=None if each is None else each.shaped(shape)
        ),
    )
    assert float(found.loss.detach()) == pytest.approx(float(expected.loss.detach()), rel=1e-5)
    torch.testing.assert_close(found_logprobs.reshape(shape), (logprobs.detach()).reshape(shape), rtol=1e-4, atol=1e-5)
    assert difference(gradients(model), wanted) < 1e-5
    for parameter, each in zip(head.parameters, wanted_head, strict=True):
        torch.testing.assert_close(parameter.grad, each, rtol=1e-4, atol=1e-6)


def test_advantages_are_estimated_from_the_average_and_whitened() -> None:
    model, head = qwen2(), head_with_opinions(16)
    values, averages, logprobs = direct(model, head)
    assert float((values - averages).detach().abs().max()) > 0.01, "the average lags behind"
    batch = rollouts_of(logprobs)
    shape, steps = batch.mask_BGT.shape, batch.steps
    assert steps is not None
    made, returns = pipeline()._batch(build_loss("ppo"), batch, TokenValues(values, averages).shaped(shape))
    advantages, wanted = gae(steps.rewards_BGT, averages.reshape(shape), batch.mask_BGT, VALUE.estimator)
    assert returns is not None
    torch.testing.assert_close(returns[batch.mask_BGT], wanted[batch.mask_BGT])
    on = advantages[batch.mask_BGT]
    assert made.token_advantages_BGT is not None
    torch.testing.assert_close(
        made.token_advantages_BGT[batch.mask_BGT], (on - on.mean()) / on.std(unbiased=False), rtol=1e-4, atol=1e-5
    )


def test_rewards_on_an_environments_tokens_count_for_the_choice_before() -> None:
    model, head = qwen2(), ValueHead(16, VALUE, CPU)
    values, averages, logprobs = direct(model, head)
    batch = rollouts_of(logprobs)
    mask = batch.mask_BGT.clone()
    last = mask.sum(-1) - 1
    chosen = last > 0
    mask[chosen] = mask[chosen].scatter(-1, last[chosen].unsqueeze(-1), False)
    shape = mask.shape
    _, returns = pipeline(replace(VALUE, gae_lambda=1.0))._batch(
        build_loss("ppo"), replace(batch, mask_BGT=mask), TokenValues(values, averages).shaped(shape)
    )
    assert returns is not None
    wanted = batch.rewards_BG.unsqueeze(-1).expand(shape)
    torch.testing.assert_close(returns[mask], wanted[mask], rtol=1e-5, atol=1e-5)


def trainer(model: Any, learning_rate: float = 1e-3) -> Trainer:
    return make_trainer(
        model, pipeline(), OptimizerConfig(learning_rate=learning_rate, warmup_updates=3), temperature=1.0
    )


def batch_of(model: Any) -> list[TrainingGroup]:
    """One group in which every other completion is right, with log-probs of the model as it is."""
    completions = (RIGHT, WRONG, RIGHT, WRONG)
    with torch.no_grad():
        logprobs, _ = completion_logprobs(model, [PROMPT] * 4, completions, 1.0)
    behavior = tuple(tuple(row[: len(ids)].tolist()) for row, ids in zip(logprobs, completions, strict=True))
    return [training_group(PROMPT, completions, behavior, (1.0, 0.0, 1.0, 0.0), 0)]


def test_values_come_to_explain_the_returns() -> None:
    model = tiny_model(seed=2).model
    made = trainer(model, learning_rate=1e-6)
    group = batch_of(model)
    figures = [made.update(group) for _ in range(250)]
    assert figures[0]["value/mean"] == pytest.approx(0.0)
    assert figures[-1]["value/loss"] < 0.5 * figures[0]["value/loss"]
    assert figures[-1]["value/explained"] > 0.5
    assert 0.3 < figures[-1]["value/mean"] < 0.9


def test_a_checkpoint_keeps_the_head_and_the_model_does_not(tmp_path: Path) -> None:
    made = tiny_model(seed=2)
    layout = layout_of(made.model, "float32")
    straight, group = trainer(made.model), batch_of(made.model)
    for _ in range(3):
        straight.update(group)
    folder = tmp_path / "step-00000003"
    straight.save(folder, made.tokenizer)
    assert layout_of(straight.model, "float32").digest == layout.digest, "what is published has no value head"
    loaded = load_pretrained(str(folder), device=CPU, dtype="float32").model
    resumed = trainer(loaded)
    resumed.restore(folder)
    for _ in range(3):
        assert straight.update(group) == resumed.update(group)
    (folder / "value.safetensors").unlink()
    without = trainer(load_pretrained(str(folder), device=CPU, dtype="float32").model)
    without.restore(folder)
    assert without.update(group)["value/mean"] == 0.0, "a run that turns the head on begins at zero"


def test_a_gradient_of_the_head_that_is_not_finite_is_not_applied() -> None:
    model = tiny_model(seed=2).model
    made = trainer(model)
    group = batch_of(model)
    made.update(group)
    assert isinstance(made.engine, LocalEngine)
    assert made.engine._value is not None
    with torch.no_grad():
        made.engine._value.parameters[1].fill_(torch.inf)
    with pytest.raises((MachineError, LocalProtocolError), match=r"finite|NaN or infinity"):
        made.update(group)


def test_a_model_with_logits_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="no place for a value head") as caught:
        BatchLogprobs(gemma2(), temperature=1.0, value=ValueHead(16, VALUE, CPU))
    assert "loss.value" in caught.value.remedy


@pytest.mark.parametrize(
    "field", [{"weight": 0.0}, {"clip": 0.0}, {"gae_lambda": 1.1}, {"learning_rate": 0.0}, {"learning_rate": 2.0}]
)
def test_illegal_settings_are_refused(field: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"loss.value.{next(iter(field))}"):
        ValueHeadConfig(**field)  # type: ignore[arg-type]
