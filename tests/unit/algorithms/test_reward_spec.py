"""The reward text of a manifest: legal forms and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.algorithms.process_rewards import RewardConfig
from p2prl.algorithms.reward_spec import parse_reward
from p2prl.errors import ConfigError

NAMED = "@" + "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("success", RewardConfig(clip=False, delta=False)),
        ("0.5*success", RewardConfig(success_weight=0.5, clip=False, delta=False)),
        ("success+process", RewardConfig(process_weight=1.0, clip=False, delta=False)),
        ("success+0.2*process:clip", RewardConfig(process_weight=0.2, clip=True, delta=False)),
        ("success+0.2*process:delta", RewardConfig(process_weight=0.2, clip=False, delta=True)),
        ("success+0.2*process:clip+delta", RewardConfig(process_weight=0.2)),
        ("2*process:clip+delta+.5*outcome+success", RewardConfig(process_weight=2.0, outcome_weight=0.5)),
        ("success+3*outcome", RewardConfig(outcome_weight=3.0, clip=False, delta=False)),
        (f"success+0.5*orm{NAMED}", RewardConfig(outcome_weight=0.5, clip=False, delta=False, model=NAMED[1:])),
        (f"0.2*prm:clip+delta+success{NAMED}", RewardConfig(process_weight=0.2, model=NAMED[1:])),
        (f"success+prm:delta{NAMED}", RewardConfig(process_weight=1.0, clip=False, model=NAMED[1:])),
    ],
)
def test_legal_rewards(text: str, expected: RewardConfig) -> None:
    assert parse_reward(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "sucess", "process", "success+", "+success", "success+success", "success+process+process", "delta",
        "success+delta", "success:clip", "success+process:delta+delta", "success+process:clip+delta+delta",
        "success+process:clip+outcome+delta", "success+process:delta+clip", "success+process:", "success+outcome:clip",
        "success + process", "0*success", "-1*success", "nan*success", "1e3*success", "1_0*success", "٣*success",
        "*success", "1001*success", "1..5*success", "2*3*success",
        "success+orm", "success+prm:clip", "success@", f"success{NAMED}", f"orm{NAMED}", f"success+orm:clip{NAMED}",
        f"success+orm+prm{NAMED}", f"success+process+orm{NAMED}", f"success+outcome+prm{NAMED}",
        f"success+orm{NAMED[:-1]}", f"success+orm{NAMED}0", f"success+orm{NAMED.upper()}", f"success{NAMED}+orm",
    ],
)  # fmt: skip
def test_illegal_rewards_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="reward") as caught:
        parse_reward(text)
    assert "success" in caught.value.remedy


@given(st.text(alphabet="success+proce:lipdtaom*.0123456789 ", max_size=64))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        config = parse_reward(text)
    except ConfigError:
        return
    assert 0 < config.success_weight <= 1000
