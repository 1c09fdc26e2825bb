"""Crash recovery: a learner killed between any two turns resumes with the same step, weights and receipts."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from p2prl.algorithms.loss_registry import build_loss
from p2prl.learner.published_policies import chained_weights
from p2prl.learner.service import Learner
from p2prl.learner.timing.next_update import Action
from p2prl.learner.training.loss_pipeline import LossPipelineConfig
from p2prl.learner.training.memory_plan import MemoryPlan
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.probation import ProbationConfig
from p2prl.models.weights.layout import flatten, weights_digest
from p2prl.protocol.envelope import body_of, open_envelope, seal
from p2prl.protocol.kinds import Kind
from p2prl.protocol.manifests import PolicyManifest
from tests.unit.learner.scripted_swarm import (
    PEERS,
    UPDATES,
    ScriptedSwarm,
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


@pytest.mark.parametrize("within_update", [False, True])
def test_killed_at_any_turn_it_ends_with_the_same_weights(
    fresh: Callable[[str], SmallRun], within_update: bool
) -> None:
    straight, undisturbed, turns = run_through(fresh("straight"), None)
    assert straight != flatten(make_learner(fresh("start")).model, undisturbed.small_run.layout), (
        "training changed the weights"
    )
    steps = [turn for turn, action in enumerate(undisturbed.actions) if action is Action.STEP]
    assert len(steps) == UPDATES
    for kill in steps if within_update else range(turns + 1):
        small_run = fresh(f"killed-{kill}")
        weights, killed, _ = run_through(small_run, kill, within_update=within_update)
        assert weights == straight, f"killed at turn {kill}"
        manifests = {m.version: m for m in killed.port.bodies(Kind.POLICY_MANIFEST)}
        assert sorted(manifests) == list(range(UPDATES + 1))
        digests = {raw for raw in killed.port.sent if open_envelope(raw, now=None).kind is Kind.POLICY_MANIFEST}
        assert len(digests) == UPDATES + 1, "one manifest a version, however often it was sent"
        lines = metrics_lines(small_run)
        assert [line["step"] for line in lines] == list(range(1, UPDATES + 1))


def test_killed_within_an_update_it_splits_the_batch_as_before(fresh: Callable[[str], SmallRun]) -> None:
    """The restarted learner finds other memory, and still uses the micro-batches of the first start."""

    def learner(small_run: SmallRun, tokens: int) -> Learner:
        plan = MemoryPlan(rule=MicroBatchRule(tokens=tokens), most_tokens=10_000)
        return make_learner(small_run, memory=plan)

    straight, swarm, _ = run_through(fresh("straight"), None, build=lambda run: learner(run, 40))
    starts = itertools.chain([40], itertools.repeat(10_000))
    step = [turn for turn, action in enumerate(swarm.actions) if action is Action.STEP][-1]
    killed, _, _ = run_through(fresh("killed"), step, within_update=True, build=lambda run: learner(run, next(starts)))
    assert killed == straight
    other, _, _ = run_through(fresh("other"), None, build=lambda run: learner(run, 10_000))
    assert other != straight, "micro-batches change the last bits, so the comparison would notice another split"


@pytest.mark.parametrize(("bound", "every"), [(0, 1), (2, 3)])
def test_with_the_tightest_bound_no_version_is_lost(fresh: Callable[[str], SmallRun], bound: int, every: int) -> None:
    """When a version is due, the newest is older than the bound allows groups to be."""
    small_run = fresh("killed")
    small_run.manifest = msgspec.structs.replace(small_run.manifest, staleness_bound=bound, publish_every=every)
    swarm = ScriptedSwarm(small_run, lambda: make_learner(small_run))
    for number in itertools.count():
        assert number < 60, "the run did not end"
        swarm.restart()
        if swarm.turn() is Action.FINISH:
            break
    swarm.learner.close()
    sent = {raw for raw in swarm.port.sent if open_envelope(raw, now=None).kind is Kind.POLICY_MANIFEST}
    manifests = [body_of(open_envelope(raw, now=None), PolicyManifest) for raw in sent]
    steps = [*range(0, UPDATES, every), UPDATES]
    assert sorted((m.version, m.step) for m in manifests) == list(enumerate(steps)), "one manifest a version"
    lines = metrics_lines(small_run)
    assert [line["step"] for line in lines] == list(range(1, UPDATES + 1))


def test_restart_deletes_blobs_outside_the_window(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    small_run.manifest = msgspec.structs.replace(small_run.manifest, staleness_bound=1)
    swarm = ScriptedSwarm(small_run, lambda: make_learner(small_run, checkpoint_every=1))
    while swarm.turn() is not Action.FINISH:
        pass
    blobs = small_run.directory / "blobs"
    (file, *_) = small_run.manifest.files
    for name in (file.blob.root.hex(), "ab" * 32 + ".new", "cd" * 32 + ".part", "ef" * 32 + ".tree", "notes.txt"):
        (blobs / name).write_bytes(b"left here")
    swarm.restart()
    swarm.learner.close()
    manifests = {m.version: m for m in swarm.port.bodies(Kind.POLICY_MANIFEST)}
    window = [manifests[version] for version in (UPDATES - 1, UPDATES)]
    patches = {patch.blob.root for m in window for patch in m.patches}
    needed = {file.blob.root, *patches}
    trees = {f"{root.hex()}.tree" for root in patches | {manifest.weights.root for manifest in window}}
    assert {path.name for path in blobs.iterdir()} == {"notes.txt", "chain", *(root.hex() for root in needed), *trees}
    for manifest in window:
        weights = chained_weights(blobs, manifest)
        assert weights is not None
        assert weights_digest(weights) == manifest.weights_digest


def test_probation_is_replayed(fresh: Callable[[str], SmallRun]) -> None:
    def careful(small_run: SmallRun) -> Learner:
        return make_learner(
            small_run,
            around=LossPipelineConfig(
                objective=build_loss("gepo_t"),
                probation=ProbationConfig(probation_groups=3),
            ),
        )

    def outcome(name: str, kill: int | None) -> tuple[bytes, list[dict[str, Any]]]:
        small_run = fresh(name)
        weights, _, _ = run_through(small_run, kill, within_update=True, build=careful)
        return weights, metrics_lines(small_run)

    straight, lines = outcome("straight", None)
    assert [line["probation_groups"] for line in lines] == [2, 2, 2, 0, 0], "two peers, one group an update each"
    for kill in (5, 8):
        weights, again = outcome(f"killed-{kill}", kill)
        assert weights == straight
        assert [line["probation_groups"] for line in again] == [line["probation_groups"] for line in lines]


def test_dead_band_publishes_the_same_weights_after_a_crash(
    fresh: Callable[[str], SmallRun],
) -> None:
    band_ulp = 1 << 21  # a quarter of a binade: at this test's learning rate some weights leave it and some do not

    def banded(small_run: SmallRun) -> Learner:
        return make_learner(small_run, dead_band_ulp=band_ulp)

    def outcome(
        name: str, kill: int | None, build: Callable[[SmallRun], Learner]
    ) -> tuple[bytes, list[bytes], ScriptedSwarm]:
        small_run = fresh(name)
        weights, swarm, _ = run_through(small_run, kill, build=build)
        manifests = {m.version: m for m in swarm.port.bodies(Kind.POLICY_MANIFEST)}
        folder = small_run.blobs.directory
        published = [chained_weights(folder, manifests[version]) for version in range(UPDATES + 1)]
        return weights, [bytes(each) for each in published if each is not None], swarm

    weights, published, swarm = outcome("straight", None, banded)
    shares = []
    for before, after in itertools.pairwise(
        np.frombuffer(weights, dtype="<u4").astype(np.int64) for weights in published
    ):
        same_sign = before >> 31 == after >> 31
        steps = np.abs(after - before)[same_sign]
        assert np.array_equal(steps <= band_ulp, steps == 0)
        shares.append(np.count_nonzero(steps) / len(steps))
    assert 0.0 < max(shares) < 0.9
    receipts = [receipt for body in swarm.port.bodies(Kind.RECEIPTS) for receipt in body.receipts]
    assert len(receipts) >= UPDATES * 2
    assert not any(receipt.reason for receipt in receipts), "volunteers sample with the weights that are replayed"
    _, unbanded, _ = outcome("unbanded", None, make_learner)
    assert published[0] == unbanded[0]
    assert published[-1] != unbanded[-1]
    assert weights != published[-1], "the training weights differ from the published ones"
    for kill in (2, 5, 9):
        assert outcome(f"killed-{kill}", kill, banded)[:2] == (weights, published)


def test_stale_group_after_a_restart_is_expired_not_rejected(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    swarm = ScriptedSwarm(small_run, lambda: make_learner(small_run, updates=UPDATES + 4))
    while not swarm.sampled:
        swarm.turn()
    first = small_run.published.at(0)
    assert first is not None
    stale = seal(PEERS[0], small_run.group(first, PEERS[0], 70), run=small_run.run, now=NOW)
    while swarm.learner.step < UPDATES + 2:
        swarm.turn()
    swarm.restart()
    swarm.deliver(stale)
    for _ in range(4):
        swarm.turn()
    (receipt,) = [r for body in swarm.port.bodies(Kind.RECEIPTS) for r in body.receipts if r.slot == 70]
    assert receipt.reason == "too_stale"
    swarm.learner.close()


def test_what_a_group_claims_ends_no_learner(fresh: Callable[[str], SmallRun]) -> None:
    """Claims are finite numbers, up to the largest double: no sum of them may leave the range."""
    small_run = fresh("run")
    swarm = ScriptedSwarm(small_run, lambda: make_learner(small_run, updates=UPDATES + 4))
    while not swarm.sampled:
        swarm.turn()
    first = small_run.published.at(0)
    assert first is not None
    while swarm.learner.step < UPDATES + 2:
        swarm.turn()
    most = sys.float_info.max
    for slot, claim in ((70, most), (71, most), (72, -most)):
        group = small_run.group(first, PEERS[0], slot)
        completions = tuple(msgspec.structs.replace(each, reward=claim) for each in group.completions)
        claimed = msgspec.structs.replace(group, seconds=claim, completions=completions)
        swarm.deliver(seal(PEERS[0], claimed, run=small_run.run, now=NOW))
    swarm.finish()
    receipts = [r for body in swarm.port.bodies(Kind.RECEIPTS) for r in body.receipts if 70 <= r.slot <= 72]
    assert [receipt.reason for receipt in receipts] == ["too_stale"] * 3
    swarm.learner.close()
