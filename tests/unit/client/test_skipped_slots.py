"""Slots whose prompt does not fit the run: the volunteer leaves them out, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.client import sampler
from p2prl.errors import RemoteProtocolError
from p2prl.net.process import control
from p2prl.protocol.wire_codec import encode
from p2prl.tasks.task_registry import task_by_name
from tests.unit.client.volunteer_rig import ME, VolunteerRig
from tests.unit.learner.small_run import SmallRun
from tests.unit.uneven_task import install_uneven_task

SLOTS = 24


def usable(run: SmallRun) -> list[int]:
    """The first slots of version 0 that have valid work."""
    policy = run.published.newest
    assert policy is not None
    slots = []
    for slot in range(SLOTS):
        try:
            run.work.assign(beacon=policy.manifest.beacon, peer=ME.public_key, slot=slot)
        except RemoteProtocolError:
            continue
        slots.append(slot)
    assert 0 < len(slots) < SLOTS
    return slots


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VolunteerRig:
    return VolunteerRig(tmp_path, task=install_uneven_task(tmp_path, monkeypatch))


def test_slots_that_do_not_fit_are_skipped_with_one_notice(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    while len(rig.groups()) < SLOTS:
        rig.turns(1)
    fitting = usable(rig.small_run)
    assert sorted(group.slot for group in rig.groups() if group.slot < SLOTS) == fitting
    assert len(rig.notices) == 1
    assert "is skipped" in rig.notices[0]
    first = min(set(range(SLOTS)) - set(fitting))
    assert rig.notices[0].startswith(f"slot {first} of version 0")
    rig.close()


def test_after_a_restart_they_are_skipped_again(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    while len(rig.groups()) < 4:
        rig.turns(1)
    rig.volunteer.close()
    policy = rig.small_run.published.newest
    assert policy is not None
    rig.start()
    rig.introduce()
    path = str(rig.small_run.blobs.path(policy.manifest.weights.root))
    rig.port.inbox.append(control.VersionReady(policy.digest, encode(policy.manifest), path))
    fitting = set(usable(rig.small_run))
    while fitting - {group.slot for group in rig.groups()}:
        rig.clock.time += 10  # groups in flight have timed out
        rig.turns(1)
    assert {group.slot for group in rig.groups() if group.slot < SLOTS} == fitting
    rig.close()


def test_a_run_without_a_fitting_prompt_is_given_up(rig: VolunteerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_MOST_SKIPPED", 9)
    task = task_by_name(rig.small_run.manifest.tasks[0].task).task
    monkeypatch.setattr(type(task), "prompt", lambda self, seed: "7" * 40)
    rig.introduce()
    rig.offer(0)
    with pytest.raises(RemoteProtocolError, match=r"prompt of 4\d tokens"):
        rig.turns(20)
    assert len(rig.notices) == 1
    rig.close()
