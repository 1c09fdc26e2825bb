"""Sampling settings of a new run: groups that could not be sent are refused with the arithmetic and a way out."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.learner.new_run_plan import RunPlan, check_groups_travel
from p2prl.protocol import limits
from p2prl.protocol.rollout_group import largest_group_bytes


def test_every_legal_run_can_send_its_groups() -> None:
    RunPlan(
        name="long",
        goal="test",
        task="chain4",
        model=None,
        group_size=limits.MAX_GROUP_SIZE,
        max_new_tokens=limits.MAX_COMPLETION_TOKENS,
    )


def test_the_refusal_shows_the_arithmetic_and_a_length_that_fits() -> None:
    with pytest.raises(ConfigError) as caught:
        check_groups_travel(64, 65_536)
    text = str(caught.value)
    assert "--group-size 64 x --max-new-tokens 65536 x 6 bytes = 25,165,824 bytes" in text
    assert "12,648,448 bytes" in text
    (longest,) = re.findall(r"--max-new-tokens (\d+)", caught.value.remedy)
    check_groups_travel(64, int(longest))
    with pytest.raises(ConfigError):
        check_groups_travel(64, int(longest) + 1)


def test_a_group_too_large_without_a_token_has_no_length_that_fits() -> None:
    with pytest.raises(ConfigError) as caught:
        check_groups_travel(64, 8, most_bytes=largest_group_bytes(64, 0))
    assert "max-new-tokens" not in caught.value.remedy


@given(st.integers(1, 200), st.integers(1, 100_000), st.integers(40_000, 20_000_000))
def test_the_suggested_length_always_fits(group_size: int, tokens: int, most: int) -> None:
    try:
        check_groups_travel(group_size, tokens, most_bytes=most)
        assert largest_group_bytes(group_size, tokens) <= most
    except ConfigError as error:
        assert largest_group_bytes(group_size, tokens) > most
        for longest in re.findall(r"--max-new-tokens (\d+)", error.remedy):
            check_groups_travel(group_size, int(longest), most_bytes=most)


@pytest.mark.parametrize("text", ["", "two\nlines", "x" * (limits.MAX_TEXT_CHARS + 1)])
def test_goal_and_license_are_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="--license"):
        RunPlan(name="unit", goal="test", task="chain4", model=None, license=text)
    with pytest.raises(ConfigError, match="--goal"):
        RunPlan(name="unit", goal=text, task="chain4", model=None)
