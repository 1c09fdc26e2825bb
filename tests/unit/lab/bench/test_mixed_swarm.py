"""The benchmark of whole swarms with cheats: which runs it does, what it keeps, and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.sim import simulated_run
from p2prl_lab.bench.trust import mixed_swarm
from p2prl_lab.bench.trust.mixed_swarm import MixedConfig, MixedRow, run_mixed, summarize

ROW = MixedRow(
    scenario="all honest",
    seed=0,
    honest=10,
    cheats=5,
    checks=True,
    updates=200,
    final_reward=0.8,
    reward_of_all_honest=0.8,
    forged_trained_on=0,
    influence_of_cheats=0.0,
    influence_of_sybils=0.0,
    cap=0.15,
    honest_faulted=0,
    cheats_credited=0,
    staleness=1.0,
    virtual_s=4_000.0,
)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(simulated_run, "_EVALUATION_PROMPTS", 8)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_each_seed_is_compared_with_its_own_honest_run_and_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, bool, int]] = []

    def row(
        config: MixedConfig,
        warm: LoadedModel,
        name: str,
        seed: int,
        checks: bool,
        reference: float | None,
        on_progress: Callable[[str, float], None],
    ) -> MixedRow:
        done.append((name, checks, seed))
        reward = 0.8 + seed / 100 - 0.01 * len(name) * (not checks)
        reward_of_all_honest = reward if reference is None else reference
        return replace(
            ROW, scenario=name, checks=checks, seed=seed, final_reward=reward, reward_of_all_honest=reward_of_all_honest
        )

    monkeypatch.setattr(mixed_swarm, "_row", row)
    monkeypatch.setattr(mixed_swarm, "_warm_policy", lambda seed, steps: tiny_model("chain4", seed=seed))
    config = MixedConfig(seeds=2)
    rows = list(run_mixed(config, tmp_path, on_progress=lambda *_: None))
    sybils = [(name, checks, 0) for name in ("sybils that choose", "sybils that forge") for checks in (True, False)]
    of_seeds = [
        [("all honest", True, seed), ("mixed cheats", True, seed), ("mixed cheats", False, seed)] for seed in (0, 1)
    ]
    assert done == [*of_seeds[0], *sybils, *of_seeds[1]]
    assert {row.reward_of_all_honest for row in rows if row.seed == 0} == {0.8}
    assert {row.reward_of_all_honest for row in rows if row.seed == 1} == {0.81}
    assert list(run_mixed(config, tmp_path, on_progress=lambda *_: None)) == rows
    assert len(done) == len(rows), "kept"
    fewer = run_mixed(replace(config, sybil_seeds=0, unchecked_seeds=1), tmp_path, on_progress=lambda *_: None)
    assert [(row.scenario, row.checks, row.seed) for row in fewer] == [*of_seeds[0], *of_seeds[1][:2]]
    (unchecked,) = [each for each in summarize(rows) if each.scenario == "mixed cheats" and not each.checks]
    assert (unchecked.seeds, unchecked.difference, unchecked.standard_error) == (2, -0.12, 0.0)


def test_the_error_of_a_difference_is_that_of_its_mean() -> None:
    rows = [replace(ROW, seed=seed, final_reward=0.8 + d) for seed, d in enumerate((-0.03, 0.0, 0.03))]
    (summary,) = summarize([replace(row, influence_of_cheats=row.seed / 10, honest_faulted=1) for row in rows])
    assert (summary.difference, summary.standard_error) == (0.0, 0.0173)
    assert (summary.influence, summary.honest_faulted) == (0.2, 3)


def test_sybils_that_forge_are_trained_on_only_by_a_learner_that_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_swarm, "_SYBILS_BEGIN_S", 20.0)
    monkeypatch.setattr(mixed_swarm, "_SAMPLE_S", 10.0)
    config = MixedConfig(honest=2, sybils=6, updates=3, evaluation_prompts=8)
    checked, trusted = (
        mixed_swarm._row(config, tiny_model("chain4", seed=1), "sybils that forge", 0, checks, 0.5, lambda *_: None)
        for checks in (True, False)
    )
    assert (checked.updates, checked.cheats, checked.honest_faulted) == (3, 6, 0)
    assert (checked.forged_trained_on, checked.influence_of_sybils, checked.cheats_credited) == (0, 0.0, 0)
    assert trusted.forged_trained_on > 0
    assert trusted.influence_of_sybils > trusted.cap
