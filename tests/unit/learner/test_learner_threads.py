"""The learner with replay and training in threads: the same guarantees, and messages answered meanwhile."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from p2prl.errors import IntegrityError
from p2prl.learner.timing.next_update import Action
from p2prl.protocol.envelope import seal
from p2prl.protocol.kinds import Kind
from p2prl.swarm import signals
from tests.unit.learner.scripted_swarm import (
    PEERS,
    THREAD_WAIT_S,
    UPDATES,
    ScriptedSwarm,
    ThreadedSwarm,
    fresh_runs,
    make_learner,
    metrics_lines,
    run_through,
)
from tests.unit.learner.small_run import NOW, SmallRun


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], SmallRun]]:
    with fresh_runs(tmp_path) as make:
        yield make


class HeldUpdates:
    """Updates of a learner that wait until they are let go."""

    def __init__(self, swarm: ScriptedSwarm) -> None:
        learner = swarm.learner
        self._wake = swarm.port.wake
        self.began, self.go = threading.Event(), threading.Event()
        self._update = learner._training._trainer.update
        learner._training._trainer.update = self._held  # type: ignore[method-assign]

    def _held(self, groups: Any) -> Any:
        self.began.set()
        self._wake()
        assert self.go.wait(THREAD_WAIT_S)
        return self._update(groups)


def receipts(swarm: ScriptedSwarm) -> Counter[bytes]:
    return Counter(r.group for body in swarm.port.bodies(Kind.RECEIPTS) for r in body.receipts)


def stored(swarm: ScriptedSwarm) -> set[bytes]:
    return {name for receipt in swarm.port.bodies(Kind.STORAGE_RECEIPT) for name in receipt.groups}


def test_threads_train_on_the_same_groups_and_reach_the_same_weights(fresh: Callable[[str], SmallRun]) -> None:
    straight, _, _ = run_through(fresh("inline"), None)
    swarm = ThreadedSwarm(fresh("threads"))
    swarm.finish()
    assert swarm.weights() == straight
    assert set(receipts(swarm).values()) == {1}
    lines = metrics_lines(swarm.small_run)
    assert [line["step"] for line in lines] == list(range(1, UPDATES + 1))
    for line in lines:
        assert sum(value for key, value in line.items() if key.startswith("training/")) == pytest.approx(1.0)
        assert line["training/busy"] > 0.0
        assert line["queue/stored_groups"] == line["queue/replaying_groups"] == 0
    swarm.learner.close()


def test_killed_with_jobs_in_progress_it_ends_with_the_same_weights(fresh: Callable[[str], SmallRun]) -> None:
    """Closing drops the results of jobs in progress, as a kill does; they are computed again from the journal."""
    straight, _, _ = run_through(fresh("straight"), None)
    for kill in (3, 6, 11, 17):
        swarm = ThreadedSwarm(fresh(f"killed-{kill}"))
        for _ in range(kill):
            if swarm.turn() is Action.FINISH:
                break
        swarm.restart()
        swarm.finish()
        assert swarm.weights() == straight, f"killed at turn {kill}"
        assert set(receipts(swarm).values()) == {1}
        manifests = {m.version for m in swarm.port.bodies(Kind.POLICY_MANIFEST)}
        assert sorted(manifests) == list(range(UPDATES + 1))
        assert [line["step"] for line in metrics_lines(swarm.small_run)] == list(range(1, UPDATES + 1))
        swarm.learner.close()


def test_groups_are_acknowledged_and_replayed_during_an_update(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    swarm = ThreadedSwarm(small_run)
    held = HeldUpdates(swarm)
    while not held.began.is_set():
        swarm.turn()
    policy = small_run.published.newest
    assert policy is not None
    before = set(receipts(swarm))
    late = small_run.sealed(small_run.group(policy, PEERS[0], 5), PEERS[0])
    swarm.deliver(late.raw)
    swarm.port.inbox.append(signals.LedgerWanted("peer", 0))
    while late.digest not in receipts(swarm):
        swarm.turn()
    assert late.digest in stored(swarm)
    assert len(swarm.port.pages) == 1
    assert set(receipts(swarm)) - before == {late.digest}
    assert swarm.learner.step == 0
    held.go.set()
    swarm.finish()
    swarm.learner.close()


@pytest.mark.parametrize("stage", ["replay", "training"])
def test_error_of_a_stage_ends_the_learner(fresh: Callable[[str], SmallRun], stage: str) -> None:
    swarm = ThreadedSwarm(fresh("run"))

    def fail(*_: object) -> None:
        raise IntegrityError("of the stage")

    if stage == "replay":
        swarm.learner._checks._replayer.check = fail  # type: ignore[method-assign,assignment]
    else:
        swarm.learner._training._trainer.update = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(IntegrityError, match="of the stage"):
        swarm.finish()
    swarm.learner.close()


def test_stopping_finishes_the_update_in_progress(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    swarm = ThreadedSwarm(small_run)
    while not swarm.sampled:
        swarm.turn()
    swarm.turn()
    held = HeldUpdates(swarm)

    def stop_within_the_update() -> None:
        assert held.began.wait(THREAD_WAIT_S)
        swarm.learner.stop()
        swarm.port.wake()
        held.go.set()

    stopper = threading.Thread(target=stop_within_the_update)
    stopper.start()
    swarm.learner.run(swarm.port, on_up=lambda _: None)
    stopper.join()
    assert [line["step"] for line in metrics_lines(small_run)] == [1]
    assert (small_run.directory / "checkpoints" / "step-1").exists() or list(
        (small_run.directory / "checkpoints").glob("step-*1")
    )
    assert make_learner(small_run).step == 1


def test_every_group_gets_a_receipt_although_the_swarm_outruns_training(fresh: Callable[[str], SmallRun]) -> None:
    """Far more groups than updates need: the newest are trained on, the others expire or are credited."""
    small_run = fresh("run")
    # Groups expire here, and with this clock, which hardly moves, a pause for them would not end.
    swarm = ThreadedSwarm(small_run, updates=UPDATES + 4, replay_budget=0.5, pace_limit=0.0)
    delivered = set()
    while True:
        for peer, slot in itertools.product(PEERS, range(10, 13)):
            policy = small_run.published.newest
            if policy is not None and policy.manifest.version < 3:
                number = slot + 3 * policy.manifest.version
                group = seal(peer, small_run.group(policy, peer, number), run=small_run.run, now=NOW)
                if group not in delivered:
                    delivered.add(group)
                    swarm.deliver(group)
        if swarm.turn() is Action.FINISH:
            break
    while swarm.learner._checks.settle_next(step=swarm.learner.step):
        pass
    assert stored(swarm) == set(receipts(swarm))
    assert set(receipts(swarm).values()) == {1}
    assert set(swarm.learner.counts()) <= {"used", "unused", "verified", "expired"}
    swarm.learner.close()
