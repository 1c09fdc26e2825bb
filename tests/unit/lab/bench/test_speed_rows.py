"""Rows of moving policies: areas, the void rule, what a run was made with, and comparisons between methods."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from p2prl_lab.bench.staleness.comparisons import as_markdown as comparisons_as_markdown
from p2prl_lab.bench.staleness.comparisons import comparisons_of
from p2prl_lab.bench.staleness.results import ResultFile
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.staleness.summary import as_markdown, rows_of
from tests.unit.lab.bench.test_bench_staleness import CALM, result, setting


def test_rows_say_how_fast_a_policy_learned_and_whether_it_was_stale_at_all(tmp_path: Path) -> None:
    def curve(seed: int, points: dict[int, float], *, kl: float, tapered: float | None = None) -> SeedResult:
        whole = result(seed, 0.9)
        made = [
            dataclasses.replace(whole.evaluations[0], update=update, greedy=greedy, kl=kl, failures_below_05=tapered)
            for update, greedy in points.items()
        ]
        return dataclasses.replace(whole, evaluations=tuple(made), torch="2.13.0", machine="cpu x86_64")

    file = ResultFile(tmp_path / "results.jsonl")
    swift, slow = {0: 0.0, 40: 0.8, 80: 0.8, 120: 0.8}, {0: 0.0, 40: 0.4, 80: 0.6, 120: 0.8}
    file.add(setting("gex", "const:0"), [curve(seed, swift, kl=0.0) for seed in range(2)])
    file.add(setting("gex", "block:40"), [curve(0, slow, kl=0.02, tapered=0.5), curve(1, slow, kl=0.004, tapered=None)])
    own, row = rows_of(file, "chain4", ["gex"], ["const:0", "block:40"], CALM, range(2))
    assert (own.area_from, row.area_from) == (0, 40)
    assert own.area == pytest.approx((0.4 + 0.8 + 0.8) / 3)
    assert row.area == pytest.approx((0.5 + 0.7) / 2)
    assert row.area_per_seed == pytest.approx((0.6, 0.6))
    assert row.own_base is not None
    assert row.own_base.area == pytest.approx(0.8)  # over the row's own updates
    assert row.own_base.area_loss == pytest.approx(0.25)
    # The level is .98 of .8, the mean of the last three evaluations on policy.
    assert (own.updates_to_98, row.updates_to_98) == (40.0, 120.0)
    assert (own.void, row.void, row.stale_share) == (False, False, 0.5)  # a half is not more than half
    assert row.kl_sampler == pytest.approx(0.012)
    assert (own.failures_below_05, row.failures_below_05) == (None, 0.5)
    assert (row.group_size, row.torch, row.machine) == (8, "2.13.0", "cpu x86_64")
    (stopped,) = rows_of(file, "chain4", ["gex"], ["block:40"], CALM, range(1, 2))
    assert (stopped.void, stopped.stale_share) == (True, 0.0)
    assert "0% (void)" in as_markdown([stopped])
    file.add(setting("gepo", "block:40"), [curve(0, {0: 0.0, 20: 0.5}, kl=0.02)])
    (short,) = rows_of(file, "chain4", ["gepo"], ["block:40"], CALM, range(1))
    assert (short.area, short.area_per_seed, short.updates_to_98, short.kl_sampler) == (None, (), None, 0.0)


def test_the_first_method_is_compared_with_each_other_on_the_seeds_of_both(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "results.jsonl")
    for method, lasts in (("gex", (0.8, 0.7, 0.9)), ("grpo", (0.6, 0.6, 0.7)), ("tis", (0.8, 0.7))):
        file.add(setting(method, "const:64"), [result(seed, last) for seed, last in enumerate(lasts)])
    found = comparisons_of(file, "chain4", ["gex", "grpo", "tis"], ["const:64", "const:8"], CALM, range(3))
    assert [(each.measure, each.against, each.seeds) for each in found] == [
        (measure, other, seeds)
        for measure in ("area", "greedy", "pass_at_8")
        for other, seeds in (("grpo", 3), ("tis", 2))
    ]
    greedy = found[2]
    assert (greedy.method, greedy.delay) == ("gex", "const:64")
    assert greedy.result.difference == pytest.approx(0.25 / 3)  # halves of .2, .1 and .2
    assert greedy.result.p is not None
    assert found[3].result.p == 1.0
    assert greedy.p_holm == pytest.approx(2 * greedy.result.p)
    assert "| grpo | const:64 | greedy | 8.3 |" in comparisons_as_markdown(found)
