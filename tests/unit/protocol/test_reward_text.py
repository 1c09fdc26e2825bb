"""Reward texts that name a model, and those that only look like it."""

from __future__ import annotations

import pytest

from p2prl.protocol.reward_text import reward_model_of

DIGEST = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("reward", "model"),
    [
        (f"success+orm@{DIGEST}", DIGEST),
        (f"success+0.2*prm:clip+delta@{DIGEST}", DIGEST),
        ("success", ""),
        ("@0", ""),
        (f"success+orm@{DIGEST}0", ""),
        (f"success+orm@{DIGEST.upper()}", ""),
        (f"success+orm@{DIGEST}\n", ""),
    ],
)
def test_only_a_whole_digest_at_the_end_names_a_model(reward: str, model: str) -> None:
    assert reward_model_of(reward) == model
