"""Figures of an update's batch."""

from __future__ import annotations

import pytest

from p2prl.learner.update import rewards_by_part, rewards_by_task


def test_rewards_are_told_by_task() -> None:
    found = rewards_by_task([("sums", (0.0, 1.0)), ("chains", (0.5, 0.5)), ("sums", (1.0, 1.0))])
    assert found == {
        "reward/sums/mean": 0.75,
        "reward/sums/std": pytest.approx(0.1875**0.5),
        "reward/sums/completions": 4,
        "reward/chains/mean": 0.5,
        "reward/chains/std": 0.0,
        "reward/chains/completions": 2,
    }


def test_the_mean_of_all_tasks_is_that_of_the_batch() -> None:
    rewards = [("a", (0.1, 0.7, 0.2)), ("b", (0.9,)), ("a", (0.4,))]
    found = rewards_by_task(rewards)
    total = sum(found[f"reward/{task}/mean"] * found[f"reward/{task}/completions"] for task in "ab")
    assert total / 5 == pytest.approx((0.1 + 0.7 + 0.2 + 0.9 + 0.4) / 5)


def test_parts_are_told_by_task_where_there_are_several() -> None:
    found = rewards_by_part(
        [
            ("sums", {"number": 1.0, "tidy": 0.25}),
            ("sums", {"number": 0.0, "tidy": None}),
            ("chains", {"success": 1.0}),
        ]
    )
    assert found == {
        "reward/sums/number/mean": 0.5,
        "reward/sums/number/std": 0.5,
        "reward/sums/tidy/mean": 0.25,
        "reward/sums/tidy/std": 0.0,
    }
