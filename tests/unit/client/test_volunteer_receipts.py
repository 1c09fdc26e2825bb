"""Receipts at the volunteer: by gossip, from the ledger, and forged ones."""

from __future__ import annotations

import pytest

from p2prl.errors import MachineError
from p2prl.net.process import control
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState, StorageReceipt, Verdict
from p2prl.protocol.rejection_reasons import explain
from p2prl.swarm import signals
from tests.unit.client.volunteer_rig import ME, VolunteerRig, chain, settled
from tests.unit.learner.small_run import identity


def test_receipts_settle_groups_and_give_reasons(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    first, second = rig.port.published[:2]
    stranger = Receipt(envelope_digest(first), identity("other").public_key, 0, 0, 3, "bad_tokens", 0, 0, 0.0)
    rig.port.inbox = [
        control.EnvelopeArrived(rig.says(StorageReceipt((envelope_digest(first), envelope_digest(second))))),
        control.EnvelopeArrived(rig.says(Receipts(0, (stranger, settled(first))))),
        control.EnvelopeArrived(rig.says(Receipts(0, (settled(second, ReceiptState.REJECTED, "seed_mismatch"),)))),
    ]
    rig.turns(1)
    assert rig.notices == [f"slot 1 of version 0 was rejected: {explain('seed_mismatch')}"]
    assert rig.progress[-1].groups["verified"] == rig.progress[-1].groups["rejected"] == 1
    assert rig.progress[-1].reasons == {"seed_mismatch": 1}


def test_an_expired_group_is_counted_without_a_notice(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    late = settled(rig.port.published[0], ReceiptState.EXPIRED, "too_stale")
    rig.port.inbox = [control.EnvelopeArrived(rig.says(Receipts(0, (late,))))]
    rig.turns(1)
    assert rig.notices == []
    assert rig.progress[-1].groups["expired"] == 1
    assert rig.progress[-1].reasons == {"too_stale": 1}


def exclude(rig: VolunteerRig, count: int) -> None:
    """The learner rejects the next `count` of the groups because their key is excluded."""
    raws = [raw for raw in rig.port.published if raw not in rig.port.excluded][:count]
    rig.port.excluded += raws
    receipts = tuple(settled(raw, ReceiptState.REJECTED, "excluded") for raw in raws)
    assert len(receipts) == count
    rig.port.inbox.append(control.EnvelopeArrived(rig.says(Receipts(0, receipts))))


def test_a_volunteer_stops_after_three_receipts_that_say_it_is_excluded(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(4)
    exclude(rig, 2)
    before = len(rig.port.published)
    rig.turns(2)
    assert len(rig.port.published) > before, "two may be a mistake"
    exclude(rig, 1)
    with pytest.raises(MachineError, match="excluded this machine's key") as told:
        rig.volunteer.run(rig.port)
    assert told.value.exit_code == 4
    assert "start again" in told.value.remedy


def test_an_excluded_volunteer_that_starts_again_stops_at_the_next_receipt(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(4)
    exclude(rig, 3)
    rig.turns(2)
    rig.volunteer.close()
    rig.start()
    rig.introduce()
    rig.offer(1)
    rig.turns(4)
    assert rig.port.published, "its owner may have repaired it"
    exclude(rig, 1)
    with pytest.raises(MachineError):
        rig.volunteer.run(rig.port)


def test_exclusions_of_long_ago_stop_nobody(rig: VolunteerRig) -> None:
    rig.introduce()
    rig.offer(0)
    rig.turns(4)
    exclude(rig, 2)
    rig.turns(1)
    rig.clock.time += 25 * 3600.0
    rig.turns(3)
    rig.port.excluded = list(rig.port.published[:-1])
    exclude(rig, 1)
    before = len(rig.port.published)
    rig.turns(3)
    assert len(rig.port.published) > before


def overdue(rig: VolunteerRig) -> bytes:
    """One group delivered long ago, with no receipt; returns its envelope."""
    rig.introduce()
    rig.offer(0)
    rig.turns(3)
    raw = rig.port.published[0]
    rig.port.inbox.append(control.EnvelopeArrived(rig.says(StorageReceipt((envelope_digest(raw),)))))
    rig.turns(1)
    rig.clock.time += 20
    rig.turns(1)
    return raw


def test_missed_receipts_are_read_from_the_ledger(rig: VolunteerRig) -> None:
    raw = overdue(rig)
    assert rig.port.asked == [0]
    verdict = Verdict(envelope_digest(raw), ME.public_key, 0, True, "", 9, 0, 0.0)
    page = chain(rig.says(verdict, identity("validator")), rig.says(Receipts(0, (settled(raw),))))
    rig.port.inbox.append(signals.LedgerArrived(0, page))
    rig.turns(1)
    assert rig.progress[-1].groups["verified"] == 1


def test_a_forged_ledger_page_hides_no_receipts(rig: VolunteerRig) -> None:
    """A neighbor answers with a forged chain; the learner's is read from the start once they differ."""
    raw = overdue(rig)
    liar = identity("liar")
    forged = chain(*(rig.says(Verdict(bytes(32), bytes(32), n, True, "", 0, 0, 0.0), liar) for n in range(5)))
    rig.port.inbox.append(signals.LedgerArrived(0, forged))
    rig.turns(1)
    honest = chain(*(rig.says(Receipts(n, (settled(raw),) if n == 2 else ())) for n in range(9)))
    for _ in range(3):
        rig.clock.time += 20
        rig.turns(1)
        start = rig.port.asked[-1]
        rig.port.inbox.append(signals.LedgerArrived(start, honest[start:]))
        rig.turns(1)
    assert rig.progress[-1].groups["verified"] == 1


def test_receipts_of_another_signer_settle_nothing(rig: VolunteerRig) -> None:
    raw = overdue(rig)
    forged = chain(rig.says(Receipts(0, (settled(raw, ReceiptState.REJECTED, "bad_tokens"),)), identity("liar")))
    rig.port.inbox += [signals.LedgerArrived(0, forged), signals.LedgerArrived(0, (b"garbage",))]
    rig.turns(1)
    assert rig.progress[-1].groups.get("rejected", 0) == 0
    assert rig.progress[-1].groups["delivered"] == 1
