"""Selection among work slots: with slot accounts nobody gains by it, and honest volunteers pay nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from p2prl.learner.intake.slot_accounts import FREE_AT_START, MOST_FREE
from p2prl.learner.intake.slot_gaps import COUNTED_PER_GAP
from p2prl.protocol.work_slots import VERSIONS_PER_BEACON
from p2prl_lab.bench.training.decoder_shape import initial_weights
from p2prl_lab.bench.training.environments import Environment
from p2prl_lab.bench.trust.selection_rules import SELECTIONS, Sampled, Selection, Stream
from p2prl_lab.bench.trust.slot_selection import SelectionConfig, run_selection

SLOTS = 6_400
HOURS = 4
RULES = [name for name in SELECTIONS if name.endswith("of 8") and name != "redo the end of 8"]


def stream(selection: Selection, *, priced: bool, seed: int = 0, slots: int = SLOTS) -> tuple[Stream, list[Sampled]]:
    """A volunteer's stream of random groups over some hours, and those that the learner took for training."""
    rng = random.Random(seed)
    made = Stream(selection, priced)
    taken: list[Sampled] = []
    while made.sampled < slots:
        now = 3_600 * HOURS * made.sampled / slots
        groups = [Sampled(slot, rng.random(), rng.random(), int(now // 40)) for slot in made.slots()]
        taken += made.choose(groups, now=now)
    return made, taken


def mean_reward(groups: list[Sampled]) -> float:
    return sum(group.reward for group in groups) / len(groups)


def test_an_honest_volunteer_is_credited_for_all() -> None:
    made, taken = stream(SELECTIONS["honest"], priced=True)
    assert made.used == made.delivered == made.sampled == len(taken)
    assert made.account is not None
    assert made.account.lost == 0


@pytest.mark.parametrize("name", RULES)
def test_one_of_eight_is_trained_on_a_bounded_number_of_times(name: str) -> None:
    free, unpriced = stream(SELECTIONS[name], priced=False)
    assert free.used == len(unpriced) == SLOTS / 8
    made, taken = stream(SELECTIONS[name], priced=True)
    at_once = 1 + FREE_AT_START // COUNTED_PER_GAP
    assert at_once <= made.used == len(taken) <= at_once + HOURS, "and one an hour while nothing else comes"


@pytest.mark.parametrize(("keep", "most"), [(0.99, 1.0), (0.97, 0.7), (0.95, 0.25), (0.9, 0.2), (0.5, 0.05)])
def test_dropping_a_share_costs_more_than_the_share(keep: float, most: float) -> None:
    """The lowest rewards are dropped, wherever they are; the price grows with the share."""
    rule = Selection(stretch=8, keep=lambda groups: [g for g in groups if g.reward >= 1 - keep] or groups[-1:])
    made, taken = stream(rule, priced=True, slots=2 * SLOTS)
    assert made.used / made.sampled <= most * keep + 0.01
    honest = 0.5
    shift = abs(mean_reward(taken) - honest) * made.used / made.sampled
    assert shift < 0.012, "what a peer can move the mean of all groups by, per slot that it samples"


def test_what_is_free_moves_little() -> None:
    made, taken = stream(SELECTIONS["without the best of 64"], priced=True)
    assert made.sampled - made.delivered == 100
    assert 0.95 <= made.used / (64 * MOST_FREE) <= 1.05, "what is missing at once is what may be, and then it is enough"
    assert abs(mean_reward(taken) - 0.5) < 0.01 + 3 * 0.29 / len(taken) ** 0.5


def test_slots_sampled_again_under_each_beacon_are_counted() -> None:
    """The higher slots go first, so that the lower one can be tried under the beacons that follow."""
    rng = random.Random(1)
    made = Stream(SELECTIONS["honest"], priced=True)
    for block in range(400):
        high, low = 2 * block + 1, 2 * block
        made.choose([Sampled(high, rng.random(), 1.0, 3 * block * VERSIONS_PER_BEACON)], now=60.0 * block)
        made.choose([Sampled(low, rng.random(), 1.0, (3 * block + 2) * VERSIONS_PER_BEACON)], now=60.0 * block + 40)
    assert made.account is not None
    assert made.account.lost >= 399
    assert made.used < 0.25 * made.delivered


def test_a_small_benchmark_runs(tmp_path: Path) -> None:
    config = SelectionConfig(updates=2, seeds=1, evaluation_prompts=16)

    def untrained(environment: Environment, seeds: range, out: Path) -> Tensor:
        return torch.stack([initial_weights(environment.shape, seed) for seed in seeds])

    cases = (("honest", 0.5, True), ("lowest of 8", 1.0, False), ("redo the end of 8", 0.5, True))
    shares: list[float] = []
    rows = run_selection(config, tmp_path, cases=cases, on_progress=shares.append, warm_start=untrained)
    assert [(row.selection, row.updates, row.trained) for row in rows][:2] == [
        ("honest", 2, 16),
        ("lowest of 8", 2, 32),
    ]
    assert rows[1].sampled == 8 * rows[1].delivered >= 256
    assert all(0 <= row.reward <= 1 for row in rows)
    assert shares[-1] == 1.0
