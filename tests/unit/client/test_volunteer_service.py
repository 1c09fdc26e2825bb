"""The volunteer's sampling: groups in order, restarts, damaged weights, hot swaps, parking."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p2prl.client.next_action import Wait
from p2prl.client.spool import Spool, SpoolConfig
from p2prl.errors import IntegrityError
from p2prl.models.sampler_port import StagedWeights, Weights
from p2prl.net.process import control
from p2prl.protocol.digests import digest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.ledger_messages import Receipts, ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.wire_codec import encode
from tests.unit.client.volunteer_rig import ME, VolunteerRig, settled
from tests.unit.learner.small_run import NOW


def test_groups_are_on_disk_without_gaps_and_verify(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(4)
    assert sorted(group.slot for group in rig.groups()) == list(range(len(rig.groups())))
    stored = [rig.small_run.sealed(group, ME) for group in rig.groups()]
    assert {outcome.state for outcome in rig.small_run.check(*stored)} == {ReceiptState.VERIFIED}
    assert rig.progress[-1].groups == {"generated": len(stored)}


def test_a_wait_for_files_is_not_reported_once_they_are_here(rig: VolunteerRig) -> None:
    """Building the engine from them takes seconds, in the turn that began with the wait."""
    rig.port.inbox.append(control.RunKnown(rig.small_run.manifest_raw))
    rig.turns(2)
    assert rig.progress[-1].state == "fetching the run's files"
    reports = len(rig.progress)
    rig.introduce()
    rig.turns(3)
    later = {progress.state for progress in rig.progress[reports:]}
    assert later == {"waiting for the first weights"}


def test_after_a_crash_sampling_resumes_at_the_next_slot(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(4)
    before = len(rig.groups())
    rig.volunteer.close()
    policy = rig.small_run.published.newest
    assert policy is not None
    rig.start()
    rig.introduce()
    path = str(rig.small_run.blobs.path(policy.manifest.weights.root))
    rig.port.inbox.append(control.VersionReady(policy.digest, encode(policy.manifest), path))
    rig.clock.time += 10  # groups in flight have timed out
    rig.turns(4)
    slots = [group.slot for group in rig.groups()]
    assert sorted(slots[:before]) == list(range(before)), "what no learner had confirmed is offered again first"
    assert sorted(slots[before:]) == list(range(before, len(slots)))
    assert len(slots) > before


def test_a_second_group_of_one_slot_is_not_published(rig: VolunteerRig) -> None:
    """The spool refuses it, so nothing here would know its receipt. Only a fault of this program leads there."""
    with closing(Spool(rig.spool, SpoolConfig())) as spool:
        spool.add(b"x" * 32, b"the first", version=0, slot=1, tokens=1, reward=0.0, now=NOW)
    rig.introduce()
    rig.offer(0)
    rig.turns(4)
    slots = sorted(group.slot for group in rig.groups())
    assert slots == [slot for slot in range(len(slots) + 1) if slot != 1]
    assert len(slots) > 1
    (notice,) = rig.notices
    assert "slot 1 of version 0 was given up" in notice


@pytest.mark.parametrize("left", [0, -4])
def test_damaged_or_missing_weights_are_skipped(rig: VolunteerRig, left: int) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    rig.offer(1)
    newest = rig.small_run.published.newest
    assert newest is not None
    path = rig.small_run.blobs.path(newest.manifest.weights.root)
    path.write_bytes(path.read_bytes()[:left])
    rig.turns(2)
    assert any("version 1 cannot be used" in notice for notice in rig.notices)
    path.unlink()
    rig.port.inbox.append(control.VersionReady(newest.digest, encode(newest.manifest), str(path)))
    rig.turns(3)
    assert {group.version for group in rig.groups()} == {0}


def test_sampling_continues_while_the_next_policy_is_staged(rig: VolunteerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread reads and checks the next version; the previous one is in use meanwhile."""
    rig.volunteer.close()
    rig.start(background=True)
    stage, may_go_on, done = rig.small_run.sampler.stage, threading.Event(), threading.Event()

    def slow(weights: Weights, version: int) -> StagedWeights:
        assert version != 1 or may_go_on.wait(30)
        return stage(weights, version)

    monkeypatch.setattr(rig.small_run.sampler, "stage", slow)
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    rig.offer(1)
    sampled = len(rig.groups())
    rig.turns(4)
    assert len(rig.groups()) >= sampled + 8
    assert {group.version for group in rig.groups()} == {0}
    rig.volunteer._staging._executor.submit(done.set)  # type: ignore[union-attr]
    may_go_on.set()
    assert done.wait(30)
    rig.turns(3)
    assert [group.version for group in rig.groups()][-1] == 1
    assert [group.version for group in rig.groups()] == sorted(group.version for group in rig.groups())


def test_a_policy_that_fails_its_self_check_falls_back_to_the_last(
    rig: VolunteerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    stage = rig.small_run.sampler.stage

    def wrong(weights: Weights, version: int) -> StagedWeights:
        staged = stage(weights, version)
        return replace(staged, answer=digest("p2prl/test", b"other words")) if version == 1 else staged

    monkeypatch.setattr(rig.small_run.sampler, "stage", wrong)
    rig.offer(1)
    sampled = len(rig.groups())
    rig.turns(5)
    assert any("version 1 cannot be used" in notice for notice in rig.notices)
    assert len(rig.groups()) > sampled
    assert {group.version for group in rig.groups()} == {0}


def test_weights_with_nan_logits_are_skipped(rig: VolunteerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.introduce()
    rig.offer(0)

    def broken(*_: Any, **__: Any) -> None:
        raise IntegrityError("the policy gives logits that are not numbers")

    with monkeypatch.context() as patch:
        patch.setattr(rig.small_run.sampler, "step", broken)
        rig.turns(4)
    assert rig.notices == ["version 0 cannot be sampled: the policy gives logits that are not numbers"]
    assert rig.groups() == []
    rig.offer(1)
    rig.turns(3)
    assert {group.version for group in rig.groups()} == {1}


def test_the_reward_average_survives_a_restart(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.turns(2)
    assert {progress.reward_recent for progress in rig.progress} == {None}, "nothing was earned yet"
    rig.offer(0)
    for _ in range(4):
        rig.clock.time += 1
        rig.turns(1)
    shown = rig.progress[-1].reward_recent
    assert shown is not None
    rig.volunteer.close()
    rig.start()
    rig.clock.time += 1
    rig.turns(1)
    assert rig.progress[-1].reward_recent == pytest.approx(shown)


def _slow(rig: VolunteerRig) -> None:
    """Decode one token in each turn."""
    rig.clock.step = 0.2


def test_parking_keeps_finished_groups_and_drops_those_in_flight(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    _slow(rig)
    rig.turns(2)
    said = set(rig.port.published)
    rig.volunteer.park()
    for _ in range(100):
        assert not isinstance(rig.volunteer.turn(wait_s=0.0), Wait), "something is in flight"
    assert sum(rig.progress[-1].groups.values()) == len(said)
    rig.volunteer.run(rig.port)
    assert set(rig.port.published) == said


def test_finishing_completes_what_is_in_flight(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    _slow(rig)
    rig.turns(4)
    assert rig.groups() == []
    rig.offer(1)
    rig.volunteer.finish()
    rig.volunteer.run(rig.port)
    assert sorted((group.version, group.slot) for group in rig.groups()) == [(0, 0), (0, 1)]


def test_a_crash_leaves_no_gap(rig: VolunteerRig) -> None:
    """Slot 0 was in flight when slot 1 was complete."""
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    rig.volunteer.close()
    first = min(group.slot for group in rig.groups())
    with closing(sqlite3.connect(rig.spool)) as spool:
        spool.execute("DELETE FROM groups WHERE slot = ?", (first,))
        spool.commit()
    policy = rig.small_run.published.newest
    assert policy is not None
    rig.start()
    rig.introduce()
    path = str(rig.small_run.blobs.path(policy.manifest.weights.root))
    rig.port.inbox.append(control.VersionReady(policy.digest, encode(policy.manifest), path))
    rig.turns(4)
    with closing(sqlite3.connect(rig.spool)) as spool:
        slots = [slot for (slot,) in spool.execute("SELECT slot FROM groups ORDER BY slot")]
    assert slots == list(range(len(slots)))


def test_the_next_policy_waits_for_the_groups_in_flight(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    _slow(rig)
    rig.turns(4)
    rig.offer(1)
    while len(set(rig.port.published)) < 4:
        rig.turns(1)
    groups = [body_of(open_envelope(raw, now=None), RolloutGroup) for raw in dict.fromkeys(rig.port.published)]
    assert sorted((group.version, group.slot) for group in groups[:2]) == [(0, 0), (0, 1)]
    assert {group.version for group in groups[2:]} == {1}
    stored = [rig.small_run.sealed(group, ME) for group in groups[:2]]
    assert {outcome.state for outcome in rig.small_run.check(*stored)} == {ReceiptState.VERIFIED}


def test_a_machine_without_a_memory_of_the_run_starts_above_all_it_has_used(tmp_path: Path) -> None:
    rig = VolunteerRig(tmp_path, created=NOW - 100.0)
    rig.introduce()
    rig.offer(0)
    rig.turns(4)
    first = min(group.slot for group in rig.groups())
    assert 10_000 <= first < 10_400, "a hundred numbers for each second since the run was created"
    rig.volunteer.close()
    rig.clock.time += 50
    rig.start()  # with its spool it goes on where it was
    rig.introduce()
    rig.offer(1)
    rig.turns(6)
    after = sorted(group.slot for group in rig.groups() if group.version == 1)
    assert first < after[0] < first + 200
    rig.close()


def test_numbers_that_were_used_elsewhere_are_skipped_once(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(4)
    used = list(rig.port.published)
    assert max(group.slot for group in rig.groups()) < 1_000
    rig.clock.time = rig.small_run.manifest.created_ms / 1000 + 1_000
    refused = [settled(raw, ReceiptState.REJECTED, RejectionReason.DUPLICATE_SLOT) for raw in used]
    for receipt in refused:
        rig.port.inbox.append(control.EnvelopeArrived(rig.says(Receipts(1, (receipt,)))))
    rig.port.published.clear()
    rig.turns(8)
    fresh = sorted(group.slot for group in rig.groups() if group.slot >= 1_000)
    assert fresh[0] >= 100_000
    assert fresh == list(range(fresh[0], fresh[0] + len(fresh))), "one jump, however many were refused"


def test_an_older_version_is_never_sampled_again(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    older = rig.port.inbox[-1]
    rig.offer(1)
    rig.turns(4)
    assert {group.version for group in rig.groups()} == {1}
    rig.volunteer.close()
    rig.start()
    rig.introduce()
    rig.port.inbox.append(older)
    rig.turns(6)
    assert isinstance(rig.volunteer.turn(wait_s=0.0), Wait)
