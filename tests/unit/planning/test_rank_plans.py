"""Plans of ranks: the space against its definition, the fit against known costs, the choice against brute force."""

from __future__ import annotations

import random
from itertools import product

import pytest

from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.planning.rank_plans import (
    HostPlan,
    Probe,
    Work,
    best_of_each,
    fit,
    plans_within,
    predicted_s,
    profile_timings,
    rank_plans,
    ranked,
)

WORK = Work(layers=12, rows=32, row_tokens=100)


def plan(name: str, *, tokens: int = 400, checkpointing: bool = False) -> HostPlan:
    return HostPlan(parallel=ParallelConfig(plan=name), tokens=tokens, checkpointing=checkpointing)


def scheduled_s(of: HostPlan, work: Work, costs: tuple[float, ...]) -> float:
    """Seconds of an update, counted one micro-batch after the other on a pipeline's slowest path."""
    once, once_layer, batch, batch_layer, token, token_layer, again = costs
    rows = -(-work.rows // of.parallel.data)
    together = min(rows, max(1, of.tokens // work.row_tokens))
    sizes = [min(together, rows - first) for first in range(0, rows, together)]
    path = sizes + [sum(sizes) / len(sizes)] * (of.parallel.pipeline - 1)
    seconds = once + once_layer * work.layers
    for size in path:
        tokens = size * work.row_tokens
        seconds += batch + batch_layer * work.layers + tokens * (token + token_layer * work.layers)
        seconds += tokens * work.layers * again if of.checkpointing else 0.0
    return seconds


@pytest.mark.parametrize("most", [1, 2, 3, 4, 6, 8, 64])
def test_the_space_has_every_product_once(most: int) -> None:
    found = [(each.data, each.pipeline, each.tensor, each.zero) for each in rank_plans(most)]
    counts = {count for count in (1, 2, 4, 8) if count <= most} | {min(most, 8)}
    sizes = range(1, 9)
    wanted = {
        (data, stages, tensor, zero)
        for data, stages, tensor, zero in product(sizes, sizes, sizes, (2, 3))
        if data * stages * tensor in counts and (zero == 2 or data > 1)
    }
    assert len(found) == len(set(found))
    assert set(found) == wanted


def test_a_micro_batch_fits_and_holds_a_row() -> None:
    most = {("1", False): 1000, ("1", True): 3000, ("dp2", False): 99, ("dp2", True): 100}
    parallels = [ParallelConfig(plan="1"), ParallelConfig(plan="dp2")]
    found = plans_within(parallels, lambda each, again: most[each.name, again], row_tokens=100)
    assert [(each.parallel.name, each.checkpointing, each.tokens) for each in found] == [
        *(("1", False, tokens) for tokens in (1000, 500, 250, 125)),
        *(("1", True, tokens) for tokens in (3000, 1500, 750, 375, 187)),
        ("dp2", True, 100),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_times_are_those_of_a_schedule(seed: int) -> None:
    rng = random.Random(seed)
    costs = tuple(rng.uniform(0.0, 1.0) for _ in range(7))
    for name in ("1", "dp2", "pp2", "dp2pp2", "pp4"):
        work = Work(layers=rng.randint(4, 40), rows=rng.randint(8, 64), row_tokens=rng.randint(10, 100))
        drawn = plan(name, tokens=rng.randint(10, 1000), checkpointing=rng.random() < 0.5)
        assert predicted_s(drawn, work, costs) == pytest.approx(scheduled_s(drawn, work, costs))


@pytest.mark.parametrize("name", ["1", "dp2", "pp2", "tp2", "dp2pp2"])
@pytest.mark.parametrize("seed", range(8))
def test_a_profile_of_known_costs_foretells_other_depths_and_batches(name: str, seed: int) -> None:
    rng = random.Random(f"{name}/{seed}")
    costs = tuple(rng.uniform(0.1, 1.0) / scale for scale in (1, 10, 10, 100, 1e3, 1e4, 1e4))
    timings = profile_timings(ParallelConfig(plan=name), layers=24, row_tokens=100)
    probes = [
        Probe(plan=each.plan, work=each.work, seconds=scheduled_s(each.plan, each.work, costs)) for each in timings
    ]
    found = fit(probes)
    assert min(found) >= 0.0
    for again in (False, True):
        drawn = plan(name, tokens=800, checkpointing=again)
        work = Work(layers=24, rows=64, row_tokens=100)
        assert predicted_s(drawn, work, found) == pytest.approx(scheduled_s(drawn, work, costs), rel=1e-3)


@pytest.mark.parametrize("seed", range(30))
def test_no_cost_is_negative_however_noisy_the_times(seed: int) -> None:
    rng = random.Random(seed)
    timings = profile_timings(ParallelConfig(plan="pp2"), layers=24, row_tokens=100)
    found = fit([Probe(plan=each.plan, work=each.work, seconds=rng.uniform(0.1, 2.0)) for each in timings])
    assert min(found) >= 0.0
    assert max(found) > 0.0
    deeper = Work(layers=48, rows=64, row_tokens=100)
    longer = Work(layers=24, rows=128, row_tokens=100)
    usual = Work(layers=24, rows=64, row_tokens=100)
    seconds = predicted_s(plan("pp2"), usual, found)
    assert predicted_s(plan("pp2"), deeper, found) >= seconds
    assert predicted_s(plan("pp2"), longer, found) >= seconds
    assert predicted_s(plan("pp2", checkpointing=True), usual, found) >= seconds


@pytest.mark.parametrize("seed", range(30))
def test_the_chosen_plan_is_the_fastest_of_all(seed: int) -> None:
    rng = random.Random(seed)
    parallels = rank_plans(rng.choice((2, 4, 8)))
    costs: dict[tuple[str, int], tuple[float, ...]] = {
        (each.name, each.zero): tuple(rng.uniform(0.0, 1.0) for _ in range(7))
        for each in parallels
        if rng.random() < 0.8
    }
    costs["1", 2] = (5.0,) * 7
    most = {(each, again): rng.choice((0, 100, 450, 3200)) for each in parallels for again in (False, True)}
    most[ParallelConfig(), False] = 400
    space = plans_within(parallels, lambda each, again: most[each, again], row_tokens=WORK.row_tokens)
    order = ranked(space, WORK, costs)
    known = [each for each in space if (each.parallel.name, each.parallel.zero) in costs]
    assert order[0].seconds == pytest.approx(
        min(scheduled_s(each, WORK, costs[each.parallel.name, each.parallel.zero]) for each in known)
    )
    assert [each.seconds for each in order] == sorted(each.seconds for each in order)
    assert sorted(each.plan.description for each in order) == sorted(each.description for each in known)
    best = best_of_each(order)
    assert best[0] == order[0]
    assert len({each.plan.text for each in best}) == len(best) == len({each.text for each in known})


def test_of_equally_fast_plans_one_process_is_chosen() -> None:
    flat = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    space = [plan("dp2"), plan("1", checkpointing=True), plan("1"), plan("1", tokens=200)]
    order = ranked(space, WORK, {("dp2", 2): flat, ("1", 2): flat})
    assert [each.plan for each in order] == [
        plan("1"),
        plan("1", tokens=200),
        plan("1", checkpointing=True),
        plan("dp2"),
    ]


def test_a_plan_of_more_stages_than_layers_is_not_timed() -> None:
    assert profile_timings(ParallelConfig(plan="pp4"), layers=3, row_tokens=10) == []
    depths = {each.work.layers for each in profile_timings(ParallelConfig(plan="pp2"), layers=3, row_tokens=10)}
    assert depths == {2}
