"""Laws of delay by peer, in bursts and within groups, and the steady state."""

from __future__ import annotations

import pytest

from p2prl.errors import ConfigError
from p2prl_lab.bench.staleness.benchmark import StalenessConfig
from p2prl_lab.bench.staleness.delay_laws import is_steady, parse_law, steady_updates
from p2prl_lab.bench.training.training_plan import TrainingPlan

LATE = 10**6
GRID = [(i + 0.5) / 1000 for i in range(1000)]


def test_a_distribution_is_the_same_for_every_sampler() -> None:
    law = parse_law("lognorm:64")
    assert (law.text, law.longest, law.within_groups) == ("lognorm:64", 64, False)
    assert len({tuple(law.delay(p, LATE, sampler) for p in GRID) for sampler in range(4)}) == 1


def test_each_peer_has_its_own_distribution() -> None:
    law = parse_law("peers:const:0/const:8/unif:3/const:512")
    assert law.text == "peers:const:0/const:8/unif:3/const:512"
    assert law.longest == 512
    drawn = [{law.delay(p, LATE, sampler) for p in GRID} for sampler in range(4)]
    assert drawn == [{0}, {8}, {0, 1, 2, 3}, {512}]
    assert law.delay(0.5, 100, 3) == 100  # never older than the run
    two = parse_law("peers:const:1/const:2")
    assert [two.delay(0.5, LATE, sampler) for sampler in range(4)] == [1, 2, 1, 2]


def test_seconds_by_peer_take_the_step_time() -> None:
    law = parse_law("peers:const:60s/weibull:60:1800s@6", step_s=5.0)
    assert law.text == "peers:const:60s@5/weibull:60:1800s@6"
    assert parse_law(law.text).text == law.text
    assert law.longest == 300


@pytest.mark.parametrize(("away", "batches"), [(1, 1), (8, 2), (10, 3), (64, 16)])
def test_a_burst_is_a_quarter_of_the_absence_and_one_old_policy(away: int, batches: int) -> None:
    law = parse_law(f"burst:{away}")
    cycle = away + batches
    policies = [update - law.delay(0.3, update, 2) for update in range(3 * cycle)]
    for number in range(3):
        first = number * cycle
        assert policies[first : first + away] == list(range(first, first + away))  # fresh rollouts
        assert policies[first + away : first + cycle] == [first] * batches  # the policy it had left with
    assert law.longest == max(update - policy for update, policy in enumerate(policies))
    assert law.text == f"burst:{away}"


@pytest.mark.parametrize("every", [1, 4, 64])
def test_all_samplers_take_a_version_every_k_updates_at_once_or_one_period_late(every: int) -> None:
    stage, block = parse_law(f"stage:{every}"), parse_law(f"block:{every}")
    assert (stage.text, block.text) == (f"stage:{every}", f"block:{every}")
    updates = range(5 * every)
    assert [u - stage.delay(0.3, u, 1) for u in updates] == [u // every * every for u in updates]
    for u in updates:
        # Rollouts of updates K(k + 1) to K(k + 2) - 1 come from the policy of update K k; the first have the start's.
        k = u // every - 1
        assert u - block.delay(0.3, u, 1) == max(0, k) * every
    ages = [block.delay(0.7, u, 0) for u in updates if u >= every]
    assert (min(ages), max(ages)) == (every, 2 * every - 1)
    assert stage.longest == every - 1
    assert block.longest == max(ages)
    assert stage.settled == block.settled == stage.period == block.period == every
    assert {(u - law.delay(0.1, u, 2)) % law.period for law in (stage, block) for u in updates} == {0}


@pytest.mark.parametrize(
    ("text", "settled"),
    [("const:64", 64), ("const:0", 0), ("lognorm:32", 32), ("burst:8", 8), ("start", 0), ("within:const:5", 5)],
)
def test_delays_settle_where_they_are_as_they_stay(text: str, settled: int) -> None:
    law = parse_law(text)
    assert law.settled == settled
    assert law.period == 1


def test_within_marks_the_law_and_keeps_its_delays() -> None:
    law = parse_law("within:peers:const:0/const:4")
    assert (law.text, law.longest, law.within_groups) == ("within:peers:const:0/const:4", 4, True)
    shared = parse_law("within:unif:3")
    assert (shared.text, shared.within_groups) == ("within:unif:3", True)
    assert [shared.delay(p, LATE, 1) for p in GRID] == [parse_law("unif:3").delay(p, LATE, 0) for p in GRID]


@pytest.mark.parametrize(
    "text",
    ["burst", "burst:", "burst:0", "burst:-1", "burst:٣", "burst:1.5", "peers:", "peers:const:1", "within:",
     "peers:const:1/const:1/const:1/const:1/const:1", "peers:const:1/burst:4", "peers:const:1/", "within:burst:4",
     "within:within:const:1", "within:peers:const:1", "within:soon"],
)  # fmt: skip
def test_other_laws_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_law(text)
    assert caught.value.remedy


def test_steady_state_is_five_times_the_longest_delay() -> None:
    law = parse_law("const:64")
    assert not is_steady(law, 319)
    assert is_steady(law, 320)
    assert steady_updates(law, 20) == 320
    assert steady_updates(parse_law("const:65"), 20) == 340
    assert steady_updates(parse_law("const:0"), 20) == 60  # three evaluations


def test_the_config_refuses_a_start_up_as_steady_state() -> None:
    def config(updates: int, *delays: str, steady: bool = True) -> StalenessConfig:
        plan = TrainingPlan(updates=updates)
        return StalenessConfig(methods=("grpo",), delays=delays, seeds=1, plan=plan, steady_state=steady)

    config(320, "const:64", "lognorm:60:1800s@30")
    config(300, "const:64", steady=False)
    with pytest.raises(ConfigError, match="longest delay is 64") as caught:
        config(300, "const:8", "const:64")
    assert "--updates 320" in caught.value.remedy
    with pytest.raises(ConfigError, match="peers") as caught:
        config(320, "peers:const:0/weibull:256")
    assert "--updates 1280" in caught.value.remedy


def test_offline_every_rollout_is_the_starting_policys() -> None:
    law = parse_law("start")
    assert (law.text, law.is_offline, law.within_groups) == ("start", True, False)
    assert [law.delay(0.5, update, 3) for update in (0, 1, 4096)] == [0, 1, 4096]
    assert not is_steady(law, 2560)
    for other in ("const:512", "burst:64", "peers:const:0/const:8", "within:lognorm:64"):
        assert not parse_law(other).is_offline
