"""Step credit against loops, and what Delta and Clip make of repeated steps."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from p2prl.algorithms.advantages import AdvantageConfig, AdvantageKind, compute_advantages
from p2prl.algorithms.process_rewards import RewardConfig, refine_steps, steps_to_tokens
from p2prl.algorithms.step_credit import StepRewards, returns_to_go, step_advantages
from p2prl.errors import ConfigError, LocalProtocolError

FEW = settings(max_examples=40, deadline=None)
REWARD = st.integers(-4, 4).map(lambda n: n / 4)
COMPLETION = st.lists(st.tuples(st.integers(1, 3), REWARD), min_size=1, max_size=5)
"""Steps: tokens and reward."""
GROUP = st.lists(COMPLETION, min_size=2, max_size=5)
Steps = list[tuple[int, float]]


def padded(group: list[Steps]) -> tuple[StepRewards, Tensor]:
    """A batch of one group."""
    longest = max(sum(tokens for tokens, _ in steps) for steps in group)
    rewards, ends = torch.zeros(1, len(group), longest), torch.zeros(1, len(group), longest, dtype=torch.bool)
    mask = torch.zeros_like(ends)
    for i, steps in enumerate(group):
        place = -1
        for tokens, reward in steps:
            place += tokens
            rewards[0, i, place], ends[0, i, place] = reward, True
        mask[0, i, : place + 1] = True
    return StepRewards(rewards_BGT=rewards, ends_BGT=ends), mask


def advantages(group: list[Steps], kind: AdvantageKind = "mean") -> list[list[float]]:
    """Advantage of each token of each completion."""
    steps, mask = padded(group)
    found = step_advantages(steps, mask, AdvantageConfig(kind=kind))
    return [found[0, i][mask[0, i]].tolist() for i in range(len(group))]


def left_from(steps: Steps, k: int) -> float:
    return sum(reward for _, reward in steps[k:])


def expected(group: list[Steps], *, others_only: bool = False) -> list[list[float]]:
    """Return from the token's step on, less the mean over those that reached it; by hand."""
    rows = []
    for i, steps in enumerate(group):
        row: list[float] = []
        for k, (tokens, _) in enumerate(steps):
            shared = k
            while sum(len(each) > shared for each in group) < 2:
                shared -= 1
            among = [j for j, each in enumerate(group) if len(each) > shared]
            if others_only and shared == k:
                among.remove(i)
            baseline = sum(left_from(group[j], shared) for j in among) / len(among)
            row += [left_from(steps, k) - baseline] * tokens
        rows.append(row)
    return rows


@FEW
@given(GROUP)
def test_a_token_answers_for_its_step_and_all_later_ones(group: list[Steps]) -> None:
    for found, wanted in zip(advantages(group), expected(group), strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)
    for found, wanted in zip(advantages(group, "rloo"), expected(group, others_only=True), strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)
    for found, steps in zip(advantages(group, "none"), group, strict=True):
        wanted = [left_from(steps, k) for k, (tokens, _) in enumerate(steps) for _ in range(tokens)]
        assert found == pytest.approx(wanted, abs=1e-5)


@FEW
@given(GROUP, st.integers(-8, 8).map(lambda n: n / 4))
def test_a_constant_for_finishing_changes_nothing(group: list[Steps], constant: float) -> None:
    shifted = [[*steps[:-1], (steps[-1][0], steps[-1][1] + constant)] for steps in group]
    for found, wanted in zip(advantages(shifted), advantages(group), strict=True):
        # A step that nobody else reached has the baseline of an earlier one: that shifts by the same constant.
        assert found == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("kind", ["none", "mean", "mean_std", "rloo"])
@FEW
@given(rewards=st.lists(REWARD, min_size=2, max_size=6), data=st.data())
def test_completions_of_one_step_have_the_usual_advantage(
    kind: AdvantageKind, rewards: list[float], data: st.DataObject
) -> None:
    group = [[(data.draw(st.integers(1, 4)), reward)] for reward in rewards]
    usual = compute_advantages(torch.tensor([rewards]), AdvantageConfig(kind=kind)).advantages_BG[0].tolist()
    for found, wanted, ((tokens, _),) in zip(advantages(group, kind), usual, group, strict=True):
        assert found == pytest.approx([wanted] * tokens, abs=1e-5)


def test_mean_std_gives_a_deviation_of_one_over_completions() -> None:
    group: list[Steps] = [[(1, 0.5), (2, 1.0)], [(3, -0.25), (1, 0.0)], [(2, 0.0)]]
    rows = advantages(group, "mean_std")
    squares = [sum(a * a for a in row) / len(row) for row in rows]
    assert sum(squares) / 2 == pytest.approx(1.0, abs=1e-3)
    plain = advantages(group)
    ratio = rows[0][0] / plain[0][0]
    for row, raw in zip(rows, plain, strict=True):
        assert row == pytest.approx([ratio * each for each in raw], rel=1e-4)


def test_equal_completions_have_no_signal_and_neither_has_one_alone() -> None:
    steps: Steps = [(1, 0.1), (2, 0.7), (1, 1.3)]
    assert advantages([steps] * 3) == [[0.0] * 4] * 3
    assert advantages([steps] * 3, "mean_std") == [[0.0] * 4] * 3
    assert advantages([steps], "mean_std") == [[0.0] * 4]
    assert advantages([steps]) == [[0.0] * 4]


def refined(scores: list[float], *, clip: bool, delta: bool) -> list[float]:
    cfg = RewardConfig(process_weight=1.0, clip=clip, delta=delta)
    tensor = torch.tensor([[scores]])
    return refine_steps(tensor, torch.ones_like(tensor, dtype=torch.bool), cfg)[0, 0].tolist()


@FEW
@given(st.lists(st.integers(0, 8).map(lambda n: n / 8), min_size=1, max_size=7))
def test_delta_telescopes_to_the_score_of_the_step_where_a_token_stands(scores: list[float]) -> None:
    """Summed over a completion Delta is the first step's score; credited from each step on, it is every step's own."""
    rewards = torch.tensor([[refined(scores, clip=False, delta=True)]])
    assert returns_to_go(rewards)[0, 0].tolist() == pytest.approx([*scores[:-1], 0.0])


@pytest.mark.parametrize(
    ("clip", "delta", "gains"), [(False, False, True), (True, False, False), (False, True, False), (True, True, False)]
)
@given(scores=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=5), times=st.integers(1, 3))
@FEW
def test_repeating_a_good_step_pays_only_without_clip_and_delta(
    clip: bool, delta: bool, gains: bool, scores: list[float], times: int
) -> None:
    """A true step is repeated before the answer: what is earned from any token on must not rise."""
    plain = [1.0, *scores]
    repeated = [1.0] * times + plain
    to_go = [returns_to_go(torch.tensor([[refined(each, clip=clip, delta=delta)]]))[0, 0] for each in (plain, repeated)]
    gain = float(to_go[1][0] - to_go[0][0])
    assert gain == pytest.approx(times if gains else 0.0)


def test_step_rewards_on_tokens_must_end_steps() -> None:
    rewards, ends = torch.zeros(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.bool)
    with pytest.raises(LocalProtocolError, match=r"one \(B, G, T\)"):
        StepRewards(rewards_BGT=rewards, ends_BGT=ends[..., :2])
    with pytest.raises(LocalProtocolError, match="ends_BGT is empty"):
        StepRewards(rewards_BGT=rewards, ends_BGT=torch.tensor([[[False] * 3, [True] * 3]]))
    with pytest.raises(LocalProtocolError, match="NaN or infinity"):
        StepRewards(rewards_BGT=rewards + torch.nan, ends_BGT=ends)
    with pytest.raises(LocalProtocolError, match="ends no step"):
        StepRewards(rewards_BGT=rewards + 1, ends_BGT=torch.tensor([[[True, False, True]] * 2]))
    steps = StepRewards(rewards_BGT=rewards, ends_BGT=ends)
    with pytest.raises(LocalProtocolError, match="mask_BGT"):
        step_advantages(steps, ends[:, :1], AdvantageConfig())
    for kind in ("opo", "beta"):
        with pytest.raises(ConfigError, match="no meaning for the rewards of steps"):
            step_advantages(steps, ends, AdvantageConfig(kind=kind))


def test_tokens_off_the_mask_have_no_advantage_but_their_rewards_count() -> None:
    """An environment's tokens may end a completion, which is rewarded there."""
    rewards = steps_to_tokens(torch.tensor([[[1.0], [0.0]]]), torch.tensor([[[3], [3]]]), torch.ones(1, 2, 1), tokens=4)
    ends = torch.zeros(1, 2, 4, dtype=torch.bool)
    ends[..., 3] = True
    mask = torch.tensor([[[True, False, True, False]] * 2])
    found = step_advantages(StepRewards(rewards_BGT=rewards, ends_BGT=ends), mask, AdvantageConfig())
    assert found[0].tolist() == [[0.5, 0.0, 0.5, 0.0], [-0.5, 0.0, -0.5, 0.0]]
