"""Success, outcome and process rewards; Clip and Delta against loops over the paper's cases."""

from __future__ import annotations

import pytest
import torch

from p2prl.algorithms.process_rewards import (
    RewardConfig,
    clip_steps,
    completion_rewards,
    delta_steps,
    refine_steps,
    steps_to_tokens,
)
from p2prl.errors import ConfigError, LocalProtocolError

SCORES = torch.tensor([[[0.9, 0.2, 0.7, 0.4], [0.6, 0.5, 9.0, 9.0]], [[0.3, 9.0, 9.0, 9.0], [0.1, 0.8, 0.8, 9.0]]])
STEPS = [[4, 2], [1, 3]]
MASK = torch.arange(4) < torch.tensor(STEPS).unsqueeze(-1)


def test_clip_never_pays() -> None:
    got = clip_steps(SCORES, MASK, threshold=0.5)
    for b in range(2):
        for i in range(2):
            expected = [min(float(SCORES[b, i, k]) - 0.5, 0.0) if k < STEPS[b][i] else 0.0 for k in range(4)]
            assert got[b, i].tolist() == pytest.approx(expected)


def test_delta_equals_its_cases() -> None:
    got = delta_steps(SCORES, MASK)
    for b in range(2):
        for i in range(2):
            r, count = [float(x) for x in SCORES[b, i]], STEPS[b][i]
            expected = [0.0] * 4
            for k in range(1, count + 1):  # the paper counts steps from 1
                if k < count - 1:
                    expected[k - 1] = r[k - 1] - r[k]
                elif k == count - 1:
                    expected[k - 1] = r[k - 1]
            assert got[b, i].tolist() == pytest.approx(expected)


def test_repeating_a_good_step_gains_nothing_under_delta() -> None:
    once = torch.tensor([[[0.9, 0.5, 0.5]]])
    often = torch.tensor([[[0.9, 0.9, 0.9, 0.9, 0.5, 0.5]]])
    raw_gain = float(often.sum() - once.sum())
    refined = [float(delta_steps(scores, torch.ones_like(scores)).sum()) for scores in (once, often)]
    assert raw_gain > 2
    assert refined[0] == pytest.approx(refined[1])


def test_clip_then_delta_is_their_composition() -> None:
    expected = delta_steps(clip_steps(SCORES, MASK, threshold=0.5), MASK)
    assert torch.equal(refine_steps(SCORES, MASK, RewardConfig()), expected)
    raw = refine_steps(SCORES, MASK, RewardConfig(clip=False, delta=False))
    assert torch.equal(raw, torch.where(MASK, SCORES, torch.zeros(())))


def test_parts_are_weighed_and_summed() -> None:
    success, outcome = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.2, 0.4], [0.6, 0.8]])
    cfg = RewardConfig(success_weight=2.0, outcome_weight=0.5, process_weight=0.1)
    got = completion_rewards(success, cfg, outcome_BG=outcome, step_scores_BGK=SCORES, step_mask_BGK=MASK)
    steps = refine_steps(SCORES, MASK, cfg).sum(-1)
    torch.testing.assert_close(got, 2 * success + 0.5 * outcome + 0.1 * steps)
    assert torch.equal(completion_rewards(success, RewardConfig()), success)


def test_step_rewards_land_on_the_last_token_of_their_step() -> None:
    rewards = torch.tensor([[[0.5, -0.25, 7.0]]])
    mask = torch.tensor([[[True, True, False]]])
    got = steps_to_tokens(rewards, torch.tensor([[[1, 3, 99]]]), mask, tokens=5)
    assert got.tolist() == [[[0.0, 0.5, 0.0, -0.25, 0.0]]]
    same_end = steps_to_tokens(rewards, torch.tensor([[[2, 2, 0]]]), mask, tokens=5)
    assert same_end.tolist() == [[[0.0, 0.0, 0.25, 0.0, 0.0]]]


def test_illegal_inputs_are_refused() -> None:
    success = torch.ones(2, 2)
    with pytest.raises(LocalProtocolError, match="outcome_BG"):
        completion_rewards(success, RewardConfig(outcome_weight=1.0))
    with pytest.raises(LocalProtocolError, match="step_scores_BGK"):
        completion_rewards(success, RewardConfig(process_weight=1.0))
    with pytest.raises(LocalProtocolError, match="success_BG"):
        completion_rewards(success * float("nan"), RewardConfig())
    with pytest.raises(LocalProtocolError, match="gap"):
        delta_steps(SCORES, torch.tensor([1, 0, 1, 1]).expand(2, 2, 4))
    with pytest.raises(LocalProtocolError, match="NaN"):
        clip_steps(SCORES * float("nan"), MASK, threshold=0.0)
    with pytest.raises(LocalProtocolError, match="step_ends_BGK"):
        steps_to_tokens(SCORES, torch.full((2, 2, 4), 5), MASK, tokens=5)
    with pytest.raises(ConfigError, match="success_weight"):
        RewardConfig(success_weight=-1.0)
    with pytest.raises(ConfigError, match="clip_threshold"):
        RewardConfig(clip_threshold=float("inf"))
