"""End of a volunteer's run: the run has ended and the last receipts have arrived, or the join link is dead."""

from __future__ import annotations

import pytest

from p2prl.client.progress import NO_STATUS
from p2prl.errors import TransportError, UnreachableError
from p2prl.net.process import control
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, open_envelope
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import LedgerHead, Receipts, StorageReceipt
from tests.unit.client.volunteer_rig import VolunteerRig, settled


def test_leaves_when_the_run_ended_and_all_groups_are_settled(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    head = LedgerHead(0, Digest(bytes(32)), 5, True)
    assert open_envelope(rig.says(head), now=None).kind is Kind.LEDGER_HEAD
    rig.port.inbox.append(control.EnvelopeArrived(rig.says(head)))
    raws = list(rig.port.published)
    assert raws
    rig.port.inbox.append(control.EnvelopeArrived(rig.says(Receipts(0, tuple(settled(raw) for raw in raws)))))
    assert rig.volunteer.run(rig.port) is True


def test_stays_while_receipts_come_after_the_end(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(5)
    raws = list(rig.port.published)
    assert len(raws) >= 3
    late = raws[:-1]
    rig.port.inbox.append(control.EnvelopeArrived(rig.says(LedgerHead(0, Digest(bytes(32)), 5, True))))
    answer = rig.port.poll

    def slow(timeout_s: float) -> list[control.FromNetwork]:
        rig.clock.time += 4.0  # less than the wait for one receipt, more than that for all of them
        if late and not rig.port.inbox:
            rig.port.inbox.append(control.EnvelopeArrived(rig.says(Receipts(0, (settled(late.pop()),)))))
        return answer(timeout_s)

    rig.port.poll = slow  # type: ignore[method-assign]
    assert rig.volunteer.run(rig.port) is True
    assert rig.progress[-1].groups["verified"] == len(raws) - 1, "it left before it had all that came"


def test_stays_longer_for_groups_a_learner_in_reach_holds(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(5)
    stored = rig.port.published[0]
    rig.port.inbox.append(control.EnvelopeArrived(rig.says(StorageReceipt((envelope_digest(stored),)))))
    rig.port.inbox.append(control.EnvelopeArrived(rig.says(LedgerHead(0, Digest(bytes(32)), 5, True))))
    said_at, answer = rig.clock.time, rig.port.poll

    def slow(timeout_s: float) -> list[control.FromNetwork]:
        rig.clock.time += 3.0
        if said_at + 20.0 < rig.clock.time <= said_at + 23.0:
            rig.port.inbox.append(control.EnvelopeArrived(rig.says(Receipts(0, (settled(stored),)))))
        return answer(timeout_s)

    rig.port.poll = slow  # type: ignore[method-assign]
    assert rig.volunteer.run(rig.port) is True
    assert rig.progress[-1].groups["verified"] == 1
    assert rig.clock.time < said_at + 40.0, "nothing more was taken: it leaves"


def test_an_outdated_run_end_is_ignored(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(7)
    rig.turns(1)
    for old in (LedgerHead(0, Digest(bytes(32)), 5, True), LedgerHead(3, Digest(bytes(32)), 6, True)):
        rig.port.inbox.append(control.EnvelopeArrived(rig.says(old)))
        rig.turns(2)
    said = len(rig.groups())
    assert said
    rig.turns(2)
    assert len(rig.groups()) > said


def test_a_newcomer_to_a_finished_run_leaves_after_the_doubt_period(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.port.inbox.append(control.EnvelopeArrived(rig.says(LedgerHead(9, Digest(bytes(32)), 9, True))))

    def wait(timeout_s: float) -> list[control.FromNetwork]:
        rig.clock.time += timeout_s
        messages, rig.port.inbox = rig.port.inbox, []
        return messages

    rig.port.poll = wait  # type: ignore[method-assign]
    began = rig.clock.time
    assert rig.volunteer.run(rig.port) is True
    assert 10 < rig.clock.time - began < 60


def test_a_dead_join_link_fails_after_a_minute(rig: VolunteerRig) -> None:
    waits = iter(range(200))

    def wait(timeout_s: float) -> list[control.FromNetwork]:
        rig.clock.time += timeout_s
        next(waits)
        return []

    rig.port.poll = wait  # type: ignore[method-assign]
    rig.port.status = NO_STATUS
    with pytest.raises(UnreachableError, match="within a minute") as caught:
        rig.volunteer.run(rig.port)
    assert "join link" in caught.value.remedy


def test_the_minute_begins_when_the_network_process_is_up(rig: VolunteerRig) -> None:
    """On a machine whose cores others take, its own process takes minutes to begin; no peer was asked yet."""
    began = rig.clock.time

    def wait(timeout_s: float) -> list[control.FromNetwork]:
        rig.clock.time += timeout_s
        if rig.clock.time > began + 300.0:
            rig.port.status = NO_STATUS
        return []

    rig.port.poll = wait  # type: ignore[method-assign]
    with pytest.raises(UnreachableError, match="within a minute"):
        rig.volunteer.run(rig.port)
    assert 355.0 < rig.clock.time - began < 362.0  # the clock of a test moves at each look


def test_a_network_process_that_never_begins_is_told_from_peers_that_do_not_answer(rig: VolunteerRig) -> None:
    def wait(timeout_s: float) -> list[control.FromNetwork]:
        rig.clock.time += timeout_s
        return []

    rig.port.poll = wait  # type: ignore[method-assign]
    began = rig.clock.time
    with pytest.raises(TransportError, match="did not begin within ten minutes"):
        rig.volunteer.run(rig.port)
    assert 595.0 < rig.clock.time - began < 602.0


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0], ids=["forward", "back"])
def test_a_clock_that_is_set_during_the_search_neither_ends_nor_prolongs_it(rig: VolunteerRig, jump_s: float) -> None:
    waited = 0.0

    def wait(timeout_s: float) -> list[control.FromNetwork]:
        nonlocal waited
        if waited < 30.0 <= waited + timeout_s:
            rig.clock.time += jump_s
        waited += timeout_s
        rig.clock.time += timeout_s
        return []

    rig.port.poll = wait  # type: ignore[method-assign]
    rig.port.status = NO_STATUS
    with pytest.raises(UnreachableError, match="within a minute"):
        rig.volunteer.run(rig.port)
    assert 54.0 < waited < 62.0
