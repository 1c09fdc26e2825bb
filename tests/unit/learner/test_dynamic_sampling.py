"""Dynamic sampling: groups that teach nothing are credited and left out, within a limit, before and after a crash."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.intake.dynamic_sampling import DynamicSampling, teaches
from p2prl.learner.intake.verified_group import VerifiedGroup
from p2prl.learner.journal.groups import GroupState
from p2prl.learner.service import Learner
from p2prl.learner.timing.next_update import Action
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rollout_group import Completion, EngineClass, RolloutGroup
from tests.unit.learner.scripted_swarm import PEERS, UPDATES, ScriptedSwarm, fresh_runs, make_learner, metrics_lines
from tests.unit.learner.small_run import NOW, SmallRun

SLOTS = 8
"""Slots of each volunteer under a version."""

NAN = float("nan")


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], SmallRun]]:
    with fresh_runs(tmp_path) as make:
        yield make


def packed(numbers: Sequence[float]) -> bytes:
    return np.asarray(numbers, dtype="<f4").tobytes()


def verified(
    rewards: Sequence[float], *, steps: Sequence[Sequence[float]] = (), finished: Sequence[bool] = ()
) -> VerifiedGroup:
    """A group of two tokens a completion, or of one a step reward."""
    lengths = [len(row) for row in steps] or [2] * len(rewards)
    ended = finished or [True] * len(rewards)
    completions = tuple(
        Completion(bytes(4 * length), bytes(2 * length), end, 0.0) for length, end in zip(lengths, ended, strict=True)
    )
    group = RolloutGroup(0, bytes(32), 0, "chain4", b"", completions, EngineClass("", "", "", ""), 0.0)
    step_rewards = b"".join(packed(row) for row in steps)
    return VerifiedGroup(Digest(bytes(32)), b"", group, 0, b"", packed(rewards), step_rewards=step_rewards)


EQUAL, MIXED = verified([1, 1, 1]), verified([1, 0, 1])


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=8))
def test_a_group_teaches_if_its_rewards_differ(rewards: list[float]) -> None:
    assert teaches(verified(rewards)) is (len(set(rewards)) > 1)


def test_steps_and_cuts_count() -> None:
    # Equal sums of steps that differ: each token answers for its own.
    assert teaches(verified([1, 1], steps=[[NAN, 1.0], [1.0, 0.0]]))
    assert teaches(verified([1, 1], steps=[[0.5, 0.5], [1.0, NAN, 0.0]]))
    assert not teaches(verified([1, 1], steps=[[0.5, 0.5], [0.5, NAN, 0.5]]))
    cut_off, one_ended = (verified([1, 0], finished=[False, each]) for each in (False, True))
    assert [teaches(cut_off), teaches(cut_off, masks_truncated=True)] == [True, False]
    assert teaches(one_ended, masks_truncated=True)


@given(st.integers(0, 5), st.lists(st.sampled_from(["equal", "mixed", "surplus", "batch"]), max_size=40))
def test_an_update_waits_for_no_more_than_the_limit(most: int, events: list[str]) -> None:
    sampling = DynamicSampling(most)
    waited, total = 0, 0
    for event in events:
        if event == "batch":
            sampling.batch_taken()
            waited = 0
        elif event == "mixed":
            assert not sampling.leave_out(MIXED)
            assert not sampling.leave_out(MIXED, surplus=True)
        elif event == "surplus":
            left = sampling.leave_out(EQUAL, surplus=True)
            assert left is (most > 0)
            total += left
        else:
            left = sampling.leave_out(EQUAL)
            assert left is (waited < most)
            waited += left
            total += left
    assert sampling.figures == ({"signal/left_out": total} if most else {})


class GenerousSwarm(ScriptedSwarm):
    """Volunteers that bring more groups of a version than its updates take."""

    turns = 400

    def _sample(self, raw: bytes) -> None:
        run = self.small_run
        policy = run.published.add(raw)
        first = SLOTS * policy.manifest.version
        for slot, peer in itertools.product(range(first, first + SLOTS), PEERS):
            self.deliver(seal(peer, run.group(policy, peer, slot), run=run.run, now=NOW))


def finished(run: SmallRun, share: float, *, kill: int | None = None) -> GenerousSwarm:
    """A run to its end, killed within its update number `kill`."""
    swarm = GenerousSwarm(run, lambda: make_learner(run, checkpoint_every=UPDATES, dynamic_sampling=share))
    while swarm.turn() is not Action.FINISH:
        assert len(swarm.actions) < GenerousSwarm.turns, "the run did not end"
        if kill is not None and swarm.learner.step == kill:
            kill = None
            swarm.restart()
    return swarm


def trained(run: SmallRun, learner: Learner) -> list[tuple[bytes, bool]]:
    """The digest of each group that was trained on, in order of updates, and whether its rewards differ."""
    found = []
    journal = learner._storage.journal
    for step in range(UPDATES):
        digests = journal.batches.at_step(step)
        assert digests is not None
        for stored in journal.groups.by_digest(digests):
            rewards = np.frombuffer(stored.rewards, dtype="<f4")
            found.append((bytes(stored.digest), bool(rewards.min() < rewards.max())))
    return found


def test_a_learner_credits_them_and_trains_on_others(fresh: Callable[[str], SmallRun]) -> None:
    plain = finished(run := fresh("plain"), 0.0)
    assert {teaching for _, teaching in trained(run, plain.learner)} == {True, False}
    assert "signal/left_out" not in metrics_lines(run)[-1]
    plain.learner.close()

    chosen = finished(run := fresh("chosen"), 50.0)
    used = trained(run, chosen.learner)
    assert {teaching for _, teaching in used} == {True}
    states = chosen.learner.counts()
    assert metrics_lines(run)[-1]["signal/left_out"] > 0
    receipts = [each for body in chosen.port.bodies(Kind.RECEIPTS) for each in body.receipts]
    passed = [each for each in receipts if each.state == ReceiptState.VERIFIED]
    credited = states[GroupState.UNUSED] + states[GroupState.USED] + states.get(GroupState.VERIFIED, 0)
    assert len(passed) == credited > len(used), "every one of them has its receipt"
    chosen.learner.close()


def test_a_killed_learner_trains_on_the_same(fresh: Callable[[str], SmallRun]) -> None:
    straight = finished(run := fresh("straight"), 50.0)
    killed = finished(again := fresh("killed"), 50.0, kill=3)
    assert trained(again, killed.learner)[:6] == trained(run, straight.learner)[:6]
    assert all(teaching for _, teaching in trained(again, killed.learner))
    for swarm in (straight, killed):
        swarm.learner.close()


def test_a_run_without_any_signal_goes_on(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, group_size=4, max_new_tokens=1)
    run.journal.close()
    swarm = finished(run, 1.0)
    lines = metrics_lines(run)
    assert [line["reward"] for line in lines] == [0.0] * UPDATES
    assert lines[0]["signal/left_out"] == lines[0]["groups"], "no more than the limit"
    assert not any(teaching for _, teaching in trained(run, swarm.learner))
    swarm.learner.close()
    run.blobs.close()
