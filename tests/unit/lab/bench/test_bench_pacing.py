"""Simulated queues: what each order loses, and training on what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from p2prl.errors import ConfigError
from p2prl.planning.queue_simulation import ORDERS, QueueResult, SimulatedGroup, staleness_quantile
from p2prl_lab.bench.pacing.benchmark import PacingConfig, as_documents, as_markdown, run_pacing
from p2prl_lab.bench.pacing.queued_training import QueuedTraining, is_hard_prompt
from p2prl_lab.bench.pacing.slow_swarm import SlowSwarm, simulate_swarm
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.warm_start import warm_path, warm_start


def every_fourth(machine: int, slot: int) -> bool:
    return (machine + slot) % 4 == 0


def slow_and_hard(group: SimulatedGroup) -> bool:
    return group.machine >= 12 and (group.machine + group.number) % 4 == 0


def results(**settings: float) -> dict[str, QueueResult]:
    return {
        order: simulate_swarm(SlowSwarm(order=order, **settings), every_fourth)  # type: ignore[arg-type]
        for order in ORDERS
    }


@pytest.mark.parametrize(("bound", "slow_s"), [(64, 16.0), (32, 10.0), (128, 2.0)])
def test_work_that_can_be_in_time_is_only_lost_when_the_newest_comes_first(bound: int, slow_s: float) -> None:
    found = results(staleness_bound=bound, slow_s=slow_s, updates=200)
    assert found["soonest"].lost == []
    assert found["paced"].lost == []
    assert found["paced"].seconds == found["soonest"].seconds, "nothing is lost, so nobody waits"
    assert len(found["newest"].lost) > 30
    assert found["newest"].share_trained(slow_and_hard) < 0.7
    assert len(found["newest in turns"].lost) > 20
    for result in found.values():
        assert max(result.staleness()) <= bound
        assert [len(batch) for batch in result.batches] == [16] * 200


def test_pacing_brings_what_would_arrive_too_stale_in_time_at_a_bounded_price() -> None:
    found = results(staleness_bound=32, slow_s=12.0, updates=300)  # hard ones take 36 updates
    assert found["soonest"].share_trained(slow_and_hard) == 0.0
    assert found["paced"].share_trained(slow_and_hard) > 0.4
    assert found["soonest"].seconds < found["paced"].seconds <= 1.25 * found["soonest"].seconds
    without = simulate_swarm(SlowSwarm(order="paced", pace_limit=0.0, staleness_bound=32, slow_s=12.0), every_fourth)
    assert without.share_trained(slow_and_hard) == 0.0


def test_every_group_is_settled_at_most_once() -> None:
    for result in results(updates=50).values():
        settled = [(group.machine, group.number) for batch in result.batches for group in batch]
        settled += [(group.machine, group.number) for group in result.lost]
        assert len(set(settled)) == len(settled)
    assert QueueResult().share_trained(lambda _: True) == 1.0
    assert (staleness_quantile([], 0.5), staleness_quantile([1, 5, 9], 0.5), staleness_quantile([1], 1.0)) == (0, 5, 1)


def test_a_seed_trains_on_its_queue_and_repeats() -> None:
    environment = environment_by_name("chain4")
    (start,) = warm_start(environment, range(1), steps=40)
    config = SlowSwarm(updates=4, publish_every=2)

    def trained() -> tuple[float, float, list[int]]:
        made = QueuedTraining(environment, config, seed=3, learning_rate=1e-3, start_W=start)
        found = made.run(prompts=64)
        assert not torch.equal(made._weights_MW[0].detach(), start)
        return found.greedy, found.greedy_hard, found.queue.staleness()

    assert trained() == trained()
    assert is_hard_prompt("3*4*2-7=")
    assert not is_hard_prompt("3+4*2-7=")


def test_rows_name_every_order(tmp_path: Path) -> None:
    environment = environment_by_name("chain4")
    path = warm_path(environment, 0, tmp_path / "warm")
    path.parent.mkdir()
    save_file({"weights": warm_start(environment, range(1), steps=20)[0].contiguous()}, path)
    told: list[float] = []
    rows = run_pacing(
        PacingConfig(swarm=SlowSwarm(updates=2), seeds=1, prompts=8),
        tmp_path,
        on_progress=lambda _, s: told.append(s),
    )
    assert [row.order for row in rows] == list(ORDERS)
    assert told == sorted(told)
    assert len(as_markdown(rows).splitlines()) == 2 + len(ORDERS)
    assert {len(line.split("|")) for line in as_markdown(rows).splitlines()} == {14}
    assert set(as_documents(rows)[0]) >= {"order", "lost", "trained_slow_hard", "greedy"}
    with pytest.raises(ConfigError, match="learning_rate"):
        PacingConfig(swarm=SlowSwarm(), learning_rate=1.0)
