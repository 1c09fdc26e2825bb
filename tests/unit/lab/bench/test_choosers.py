"""Choosers stay within the caps beside honest volunteers, who lose nothing; without checks they would not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from p2prl_lab.bench.training.decoder_shape import initial_weights
from p2prl_lab.bench.training.environments import Environment, environment_by_name
from p2prl_lab.bench.trust import choosers
from p2prl_lab.bench.trust.choosers import ATTACKS, ChooserPlan, chooser_row, influence
from p2prl_lab.bench.trust.chosen_training import ChosenTraining, Wanted
from p2prl_lab.bench.trust.honest_bill import EVENTS, OUTAGES, TRICKLES, bill_row

UPDATES = 60


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "keys"), [case for case in ATTACKS if "2 versions" not in case[0]])
def test_no_chooser_has_more_influence_than_its_cap(name: str, keys: int) -> None:
    share, voided = influence(name, keys, 10, checks=True, updates=UPDATES)
    assert share <= ATTACKS[name, keys].cap
    assert voided == 0


@pytest.mark.parametrize(("name", "keys"), choosers.UNCHECKED)
def test_without_checks_they_have_much_more(name: str, keys: int) -> None:
    share, _ = influence(name, keys, 10, checks=False, updates=20)
    assert share > 3 * ATTACKS[name, keys].cap


def test_one_chooser_with_standing_has_its_tenth() -> None:
    """Else the attacks above would show nothing but that they begin too late."""
    share, _ = influence("best of 8 versions", 1, 10, checks=True, updates=UPDATES)
    assert 0.06 <= share <= 0.1


@pytest.mark.parametrize(
    ("event", "trickle"),
    [("outage of 10 minutes", each) for each in TRICKLES] + [("outage of 1 hour", 0.2)] + list(EVENTS[-2:]),
)
def test_nothing_of_an_honest_volunteer_is_voided(event: str, trickle: float) -> None:
    row = bill_row(event, trickle)
    assert row.groups > 1_000
    assert (row.voided, row.waiting) == (0, 0)


def test_the_bill_covers_what_happens_to_volunteers() -> None:
    assert {trickle for event, trickle in EVENTS if event in OUTAGES} == {0.0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.5}
    assert sorted(OUTAGES.values()) == [600.0, 3_600.0, 28_800.0]
    assert [event for event, _ in EVENTS[-3:]] == [
        "sleep of 8 hours", "kill -9 at 50 points", "restart of the only relay",
    ]  # fmt: skip


def untrained(environment: Environment, seeds: range, out: Path) -> Tensor:
    return torch.stack([initial_weights(environment.shape, seed) for seed in seeds])


def test_a_row_says_what_a_choice_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosers, "warm_start_of", untrained)
    monkeypatch.setattr(choosers, "_EVALUATED", 256)
    plan = ChooserPlan(updates=12, seeds=2)
    row = chooser_row("best of 2 versions", 1, 10, "reward", checks=True, plan=plan, out=tmp_path)
    assert (row.attack, row.keys, row.honest, row.checks, row.cap) == ("best of 2 versions", 1, 10, True, 0.1)
    assert 0 <= row.influence <= 0.1
    assert abs(row.reward_difference) <= 1
    assert row.voided == 0


def test_the_best_of_several_slots_or_versions_has_the_most_reward_or_tokens() -> None:
    environment = environment_by_name("chain4")
    (start,) = untrained(environment, range(1), Path())
    training = ChosenTraining(environment, start, seed=0, learning_rate=5e-4)
    training._past.extend(
        [start + 0.05 * torch.randn(start.shape, generator=torch.Generator().manual_seed(n)) for n in range(6)]
    )

    def worth(wanted: Wanted) -> float:
        groups, version, slot = training._choose(wanted)
        found = groups.mask_VBGT.sum(dim=(2, 3)) if wanted.by_length else groups.rewards_VBG.sum(dim=-1)
        assert found[version, slot] == found.max()
        return float(found[version, slot])

    for by_length in (False, True):
        assert worth(Wanted(slot=3, slots=8, by_length=by_length)) >= worth(Wanted(slot=3, by_length=by_length))
        assert worth(Wanted(slot=3, versions=6, own_noise=True, by_length=by_length)) >= 0
