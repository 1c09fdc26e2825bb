"""Completions that were cut off: no gradient from them whatever the loss, and everything else as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from p2prl.algorithms.kl_penalty import ReferencePenaltyConfig
from p2prl.algorithms.loss_registry import LOSSES, build_loss
from p2prl.algorithms.step_credit import StepRewards
from p2prl.learner.service import Learner
from p2prl.learner.training.loss_guards import GuardConfig
from p2prl.learner.training.loss_pipeline import Estimate, LossPipeline, LossPipelineConfig, Rollouts
from p2prl.learner.training.probation import ProbationConfig
from p2prl.learner.training.value_head import TokenValues, ValueHeadConfig
from tests.unit.learner.scripted_swarm import fresh_runs, make_learner, metrics_lines, run_through
from tests.unit.learner.small_run import SmallRun
from tests.unit.learner.test_loss_pipeline import rollouts

MASK = GuardConfig(mask_truncated=True)

COUPLED = {"dpo", "eqp"}
"""Losses in which a completion decides what others weigh, so that their gradients may change too."""


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], SmallRun]]:
    with fresh_runs(tmp_path) as make:
        yield make


def cut_off_rollouts(seed: int = 0) -> tuple[Tensor, Rollouts, Tensor]:
    """Log-probs, a batch, and which completions were cut off: some of each kind of reward, none in the last group."""
    policy, batch = rollouts(seed)
    rewards = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 0, 1]]).double()
    cut_off = torch.tensor([[True, True, False, False], [False, True, False, True], [False] * 4])
    return policy, replace(batch, rewards_BG=rewards, cut_off_BG=cut_off), cut_off


def estimated(policy: Tensor, batch: Rollouts, name: str = "topr", **around: Any) -> tuple[Tensor, Estimate]:
    """The gradient of each token's log-prob, and the estimate."""
    found = LossPipeline(LossPipelineConfig(objective=build_loss(name, max_completion_tokens=8), **around)).estimate(
        policy, batch
    )
    (gradient,) = torch.autograd.grad(found.loss, policy)
    return gradient, found


@pytest.mark.parametrize("name", sorted(set(LOSSES.names())))
def test_no_loss_has_a_gradient_on_a_completion_that_was_cut_off(name: str) -> None:
    policy, batch, cut_off = cut_off_rollouts()
    kept, _ = estimated(policy, batch, name)
    masked, found = estimated(policy, batch, name, guards=MASK)
    assert masked[cut_off].count_nonzero() == 0
    assert found.metrics["masked_completions"] == 4
    assert name == "dpo" or kept[cut_off].count_nonzero() > 0
    assert masked[2].count_nonzero() > 0
    if name not in COUPLED:  # rewards stay in the baseline and tokens in the averages
        torch.testing.assert_close(masked[~cut_off], kept[~cut_off], rtol=1e-12, atol=0.0)


def test_the_baseline_of_a_group_counts_them() -> None:
    policy, batch, cut_off = cut_off_rollouts()
    gradient, _ = estimated(policy, batch, "reinforce", guards=MASK)
    for group, reward in ((0, 0.0), (1, 0.0)):
        baseline = float(batch.rewards_BG[group].mean())
        for place in range(4):
            length = int(batch.mask_BGT[group, place].sum())
            own = float(batch.rewards_BG[group, place]) - baseline
            expected = 0.0 if bool(cut_off[group, place]) else -own / (12 * length)
            assert float(gradient[group, place, 0]) == pytest.approx(expected), (group, place, reward)


def test_pairs_with_one_are_left_out_of_dpo() -> None:
    policy, batch, cut_off = cut_off_rollouts()
    gradient, found = estimated(policy, batch, "dpo", guards=MASK)
    # In the second group the only right completion was cut off: nothing is left to prefer.
    assert found.metrics["loss/pairs"] == 2
    assert gradient[1].count_nonzero() == 0
    assert gradient[0].count_nonzero() == int(batch.mask_BGT[0, 2:].sum())
    assert gradient[cut_off].count_nonzero() == 0


def test_a_reference_a_probation_loss_and_a_value_head_have_none_either() -> None:
    policy, batch, cut_off = cut_off_rollouts()
    batch = replace(batch, reference_logprobs_BGT=batch.behavior_logprobs_BGT - 0.1, trust_B=torch.tensor([0.0, 1, 1]))
    around: dict[str, Any] = {
        "reference": ReferencePenaltyConfig(beta=0.5),
        "probation": ProbationConfig(probation_groups=4),
        "probation_loss": build_loss("asympo"),
    }
    kept, _ = estimated(policy, batch, **around)
    masked, _ = estimated(policy, batch, guards=MASK, **around)
    assert masked[cut_off].count_nonzero() == 0
    torch.testing.assert_close(masked[~cut_off], kept[~cut_off])

    ends = torch.zeros(batch.mask_BGT.shape, dtype=torch.bool)
    ends.scatter_(-1, batch.mask_BGT.sum(-1, keepdim=True) - 1, value=True)
    steps = StepRewards(rewards_BGT=ends * batch.rewards_BG.unsqueeze(-1), ends_BGT=ends)
    estimates = torch.zeros(batch.mask_BGT.shape, dtype=torch.float64, requires_grad=True)
    pushes = {}
    for guards in (GuardConfig(), MASK):
        config = LossPipelineConfig(objective=build_loss("ppo"), value=ValueHeadConfig(), guards=guards)
        values = TokenValues(estimates, torch.zeros_like(estimates))
        found = LossPipeline(config).estimate(policy, replace(batch, steps=steps), values=values)
        pushes[guards] = torch.autograd.grad(found.loss, [policy, estimates])
    for without, anyway in zip(pushes[MASK], pushes[GuardConfig()], strict=True):
        assert without[cut_off].count_nonzero() == 0
        torch.testing.assert_close(without[~cut_off], anyway[~cut_off])
    assert pushes[GuardConfig()][1][cut_off].count_nonzero() > 0


def test_a_batch_that_was_cut_off_as_a_whole_has_no_gradient() -> None:
    policy, batch, cut_off = cut_off_rollouts()
    gradient, found = estimated(policy, replace(batch, cut_off_BG=torch.ones_like(cut_off)), guards=MASK)
    assert gradient.count_nonzero() == 0
    assert found.metrics["masked_completions"] == 12


def test_a_crash_leaves_out_the_same_completions(fresh: Callable[[str], SmallRun]) -> None:
    def masking(small_run: SmallRun) -> Learner:
        return make_learner(small_run, around=LossPipelineConfig(objective=build_loss("asymre"), guards=MASK))

    def outcome(name: str, kill: int | None, build: Callable[[SmallRun], Learner]) -> tuple[bytes, list[Any]]:
        small_run = fresh(name)
        weights, _, _ = run_through(small_run, kill, within_update=True, build=build)
        return weights, [line.get("masked_completions") for line in metrics_lines(small_run)]

    straight, left_out = outcome("straight", None, masking)
    assert sum(left_out) > 0
    assert outcome("killed", 5, masking) == (straight, left_out)
    plain = outcome(
        "plain", None, lambda run: make_learner(run, around=LossPipelineConfig(objective=build_loss("asymre")))
    )
    assert plain[1] == [None] * len(left_out)
    assert plain[0] != straight
