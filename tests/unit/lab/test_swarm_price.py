"""The price of a swarm: when the reward is reached, and what counts as spent."""

from __future__ import annotations

import pytest

from p2prl_lab.swarm_price import ALONE, PriceRow, Spent, as_markdown, reached_at, reward_of


def test_the_reward_is_the_mean_of_the_last_eight_updates() -> None:
    assert reward_of([1.0] * 7) == 0.0, "too few to say"
    assert reward_of([0.0, *[0.5] * 4, *[1.0] * 4]) == 0.75


@pytest.mark.parametrize(
    ("rewards", "updates"),
    [([0.9] * 20, 8), ([0.0] * 10 + [0.8] * 10, 18), ([0.0] * 10 + [0.8] * 7, 17), ([0.1], 1)],
)
def test_a_reward_is_reached_once_or_training_goes_to_its_end(rewards: list[float], updates: int) -> None:
    assert reached_at(rewards, 0.8) == updates


def test_what_was_spent_before_the_first_update_is_not_the_price() -> None:
    spent = Spent()
    spent.now = {"learner: main": 4.0, "volunteer: main": 3.0}
    spent.at_first = dict(spent.now)
    spent.now |= {"learner: main": 9.0, "volunteer: main": 3.001, "learner: daemon": 0.5}
    assert spent.parts() == {"learner: main": 5.0, "learner: daemon": 0.5}
    assert spent.start_s == 7.0


def test_the_tables_say_who_did_not_reach_it_and_where_the_time_went() -> None:
    row = PriceRow(
        model="chain4", who="1 volunteer", updates=50, reward=0.7, reached=False, cpu_s=10.0, start_cpu_s=8.0,
        of_trl=None, parts={"learner: daemon": 2.5, "volunteer: MainThread": 7.5},
    )  # fmt: skip
    alone = PriceRow(
        model="chain4", who=ALONE, updates=60, reward=0.9, reached=True, cpu_s=5.0, start_cpu_s=9.0, of_trl=1.0,
        parts={"one process": 5.0},
    )  # fmt: skip
    prices, parts = as_markdown([alone, row]).split("\n\n")
    assert prices.splitlines()[-1] == "| chain4 | 1 volunteer | 50 | 0.700 | 10.0 | 8.0 | – |"
    shown = parts.splitlines()[2:]
    assert [line.split(" | ")[2:] for line in shown] == [
        ["volunteer: MainThread", "7.50", "75% |"],
        ["learner: daemon", "2.50", "25% |"],
    ]
