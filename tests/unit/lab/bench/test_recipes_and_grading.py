"""Recipes parsed from text, and rewards on tokens."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from p2prl.algorithms.reward_spec import parse_reward
from p2prl.errors import ConfigError
from p2prl_lab.bench.comparison.recipes import parse_recipe
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.grading import grade
from p2prl_lab.bench.training.stacked_sampling import Completions

ENVIRONMENT = dataclasses.replace(environment_by_name("chain4"), max_new_tokens=12)
PROMPTS = [["3+4*2-7=", "1+1+1+1="]]  # 7, 4, 7 and 2, 3, 4
WRITTEN = [[["747#7.", "7747#7.", "7.", "748#8."], ["234#4.", "2344444", "2=4#4.", "#5."]]]


def completions() -> Completions:
    """One seed, two prompts, four completions each; `.` is the end token."""
    rows = [
        [ENVIRONMENT.end_token if symbol == "." else ENVIRONMENT.encode(symbol)[0] for symbol in text]
        for prompt in WRITTEN[0]
        for text in prompt
    ]
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [ENVIRONMENT.end_token] * (longest - len(row)) for row in rows])
    lengths = torch.tensor([[len(row)] for row in rows])
    return Completions(
        tokens_MBGT=tokens.view(1, 2, 4, longest),
        logprobs_MBGT=torch.zeros(1, 2, 4, longest),
        mask_MBGT=(torch.arange(longest) < lengths).view(1, 2, 4, longest),
        finished_MBG=torch.tensor([row[-1] == ENVIRONMENT.end_token for row in rows]).view(1, 2, 4),
    )


def test_grades_keep_the_order_of_completions() -> None:
    grades = grade(ENVIRONMENT, PROMPTS, completions())
    assert grades.success_MBG.tolist() == [[[1, 1, 0, 0], [1, 0, 1, 0]]]
    assert grades.outcome_MBG.tolist() == [[[1, 1, 0, 1], [1, 0, 0, 0]]]
    assert grades.readable_MBG.tolist() == [[[True, True, True, True], [True, False, False, True]]]
    assert grades.step_mask_MBGK.sum(-1).tolist() == [[[4, 5, 1, 4], [4, 7, 0, 1]]]
    assert grades.step_scores_MBGK[0, 0, 3].tolist() == [1, 1, 0, 0, 0, 0, 0]
    assert grades.step_ends_MBGK[0, 0, 1, :5].tolist() == [0, 1, 2, 3, 5]


@pytest.mark.parametrize(
    "text",
    ["success", "2*success+outcome", "success+0.5*process", "success+process:clip", "success+0.5*process:delta",
     "0.5*success+3*outcome+2*process:clip+delta"],
)  # fmt: skip
def test_token_rewards_sum_to_completion_rewards(text: str) -> None:
    made = completions()
    grades, reward = grade(ENVIRONMENT, PROMPTS, made), parse_reward(text)
    tokens = grades.token_rewards(reward, made.mask_MBGT)
    assert tokens[~made.mask_MBGT].count_nonzero() == 0
    torch.testing.assert_close(tokens.sum(-1), grades.completion_rewards(reward))


def test_tokens_that_steps_and_success_are_rewarded_on() -> None:
    made = completions()
    grades = grade(ENVIRONMENT, PROMPTS, made)
    raw = grades.token_rewards(parse_reward("2*success+0.5*process"), made.mask_MBGT)
    assert raw[0, 0, 0].tolist() == [0.5, 0.5, 0.5, 0, 0.5, 2, 0]
    assert raw[0, 0, 3].tolist() == [0.5, 0.5, 0, 0, 0, 0, 0]
    assert raw[0, 1, 1].tolist() == [0.5] * 7
    delta = grades.token_rewards(parse_reward("success+process:delta"), made.mask_MBGT)
    assert delta[0, 0, 0].tolist() == [0, 0, 1, 0, 0, 1, 0]  # the scores 1, 1, 1 and the answer's
    assert delta[0, 0, 3].tolist() == [0, 1, 0, 0, 0, 0, 0]  # 1, 1, 0 and the answer's
    both = grades.token_rewards(parse_reward("success+process:clip+delta"), made.mask_MBGT)
    assert both[0, 0, 3].tolist() == [0, 0.5, -0.5, 0, 0, 0, 0]


def test_ends_of_steps_and_of_completions() -> None:
    made = completions()
    grades = grade(ENVIRONMENT, PROMPTS, made)
    ends, mask = grades.step_ends(made.mask_MBGT), made.mask_MBGT
    raw = grades.token_rewards(parse_reward("success+process"), mask)
    assert bool(ends[raw != 0].all()), "rewards are where steps end"
    assert ends[0, 0, 0].tolist() == [True, True, True, False, True, True, False]  # 7 4 7 # 7 end
    last = mask.sum(-1) - 1
    assert bool(ends.gather(-1, last.unsqueeze(-1)).all())
    assert not bool((ends & ~mask).any())


def test_recipes_carry_their_options() -> None:
    assert parse_recipe("gepo_t:credit=step", max_completion_tokens=8).credit == "step"
    assert parse_recipe("gepo_t", max_completion_tokens=8).credit == "completion"
    recipe = parse_recipe("ppo:normalise=off:prompts=4:reference=ema:rate=0.1:lambda=0.5:value=2:clip_low=0.1", max_completion_tokens=8)  # fmt: skip  # noqa: E501
    assert (recipe.normalise, recipe.prompts, recipe.reference, recipe.rate) == (False, 4, "ema", 0.1)
    assert (recipe.value.gae_lambda, recipe.value_weight, recipe.objective.config.clip_low) == (0.5, 2.0, 0.1)
    assert recipe.has_value
    assert recipe.penalty is not None
    assert parse_recipe("ppo", max_completion_tokens=8).penalty is None
    dpo = parse_recipe("dpo:beta=0.3:reference=start:samples=start", max_completion_tokens=8)
    assert (dpo.has_value, dpo.penalty, dpo.samples, dpo.objective.config.beta) == (False, None, "start", 0.3)
    assert parse_recipe("dr_grpo:advantage=rloo", max_completion_tokens=8).objective.advantage.kind == "rloo"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pppo", "pppo"), ("ppo:", "unknown option"), ("ppo:normalise", "unknown option"),
        ("ppo:normalise=yes", "normalise"),
        ("ppo:prompts=0", "prompts"), ("ppo:prompts=1.5", "prompts"), ("ppo:prompts=٣", "prompts"),
        ("ppo:passes=9", "passes"), ("ppo:reference=old", "reference"), ("ppo:pull=much", "pull"),
        ("ppo:pull=nan", "pull"), ("ppo:rate=2", "rate"), ("ppo:hat=1", "hat"),
        ("ppo:prompts=4:prompts=4", "unknown option"),
        ("grpo:normalise=on", "normalise"), ("dpo:lambda=1", "lambda"), ("ppo:lambda=2", "gae_lambda"),
        ("ppo:credit=step", "its value head credits tokens"), ("gspo:credit=step", "one advantage per completion"),
        ("grpo:credit=none", "credit"),
        ("dpo:beta=0", "beta"), ("dpo:samples=old", "samples"), ("grpo:advantage=best", "advantage"),
    ],
)  # fmt: skip
def test_other_recipes_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_recipe(text, max_completion_tokens=8)
