"""Step rewards from the scorer to the trainer: through checks, journal and crash, in a learner with real groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from p2prl.algorithms.loss_registry import build_loss
from p2prl.learner.intake.verified_group import VerifiedGroup
from p2prl.learner.journal.groups import GroupState, StoredGroup
from p2prl.learner.journal.journal import Journal
from p2prl.learner.service import Learner
from p2prl.learner.training.loss_pipeline import LossPipelineConfig
from p2prl.learner.training.value_head import ValueHeadConfig
from p2prl.learner.update import _training_group
from tests.unit.learner.scripted_swarm import fresh_runs, make_learner, metrics_lines, run_through
from tests.unit.learner.small_run import NOW, SmallRun, identity

REWARD = "success+0.5*process"
STEPS = LossPipelineConfig(objective=build_loss("gepo_t"), credits_steps=True)
VALUES = LossPipelineConfig(objective=build_loss("ppo"), credits_steps=True, value=ValueHeadConfig())
SUMS = LossPipelineConfig(objective=build_loss("gepo_t"))


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], SmallRun]]:
    with fresh_runs(tmp_path) as make:

        def judged(name: str) -> SmallRun:
            run = make(name)
            run.manifest = msgspec.structs.replace(run.manifest, reward=REWARD)
            return run

        yield judged


def build(config: LossPipelineConfig) -> Callable[[SmallRun], Learner]:
    return lambda run: make_learner(run, around=config)


@pytest.mark.parametrize("config", [STEPS, VALUES], ids=["steps", "values"])
def test_a_killed_learner_credits_the_same_steps_again(
    fresh: Callable[[str], SmallRun], config: LossPipelineConfig
) -> None:
    straight, _, _ = run_through(fresh("straight"), None, build=build(config))
    run = fresh("killed")
    weights, _, _ = run_through(run, 9, within_update=True, build=build(config))
    assert weights == straight
    assert ("value/loss" in metrics_lines(run)[-1]) is (config is VALUES)
    if config is STEPS:
        summed, _, _ = run_through(fresh("summed"), None, build=build(SUMS))
        assert summed != straight, "credit makes a difference"


def test_step_rewards_are_those_of_the_tokens_and_leave_with_the_group(tmp_path: Path) -> None:
    run = SmallRun(tmp_path / "run")
    run.work = run.work.__class__(msgspec.structs.replace(run.manifest, reward=REWARD), run.run, run.work._codec)
    policy = run.publish(0, step=0)
    stored = run.sealed(run.group(policy, identity("one"), 0), identity("one"))
    run.store(stored)
    (outcome,) = run.check(stored)
    assert len(outcome.step_rewards) == len(outcome.rewards) == 2
    for row, total in zip(outcome.step_rewards, outcome.rewards, strict=True):
        assert math.fsum(each for each in row if not math.isnan(each)) == pytest.approx(total)
    packed = b"".join(np.asarray(row, dtype="<f4").tobytes() for row in outcome.step_rewards)
    groups = run.journal.groups
    with run.journal.transaction():
        groups.mark_verified(stored.digest, behavior=packed, rewards=bytes(8), step_rewards=packed)
    (kept,) = groups.by_digest([stored.digest])
    assert kept.step_rewards == packed
    verified = VerifiedGroup(stored.digest, stored.peer, outcome.group, 0, packed, bytes(8), None, kept.step_rewards)
    trained = _training_group(verified, step=0, trust=1.0)
    assert [len(row) for row in trained.step_rewards] == [len(ids) for ids in trained.completions]
    with run.journal.transaction():
        groups.mark_unused(stored.digest)
    assert groups.by_digest([stored.digest])[0].step_rewards == b""
    run.close()


def test_a_journal_without_steps_reads_as_before(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    group = StoredGroup(identity("x").public_key, b"p" * 32, 0, 0, b"raw", b"", b"")  # type: ignore[arg-type]
    with journal.transaction():
        journal.groups.store(group, NOW)
        journal.groups.mark_verified(group.digest, behavior=b"b", rewards=b"r")
    (found,) = journal.groups.in_state(GroupState.VERIFIED, 1)
    assert (found.behavior, found.rewards, found.step_rewards) == (b"b", b"r", b"")
    journal.close()
