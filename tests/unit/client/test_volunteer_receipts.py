"""Receipts at the volunteer: by gossip, from the ledger, and forged ones."""

from __future__ import annotations

from p2prl.net.process import control
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState, StorageReceipt, Verdict
from p2prl.protocol.rejection_reasons import explain
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
    rig.port.inbox.append(control.LedgerArrived(0, page))
    rig.turns(1)
    assert rig.progress[-1].groups["verified"] == 1


def test_a_forged_ledger_page_hides_no_receipts(rig: VolunteerRig) -> None:
    """A neighbor answers with a forged chain; the learner's is read from the start once they differ."""
    raw = overdue(rig)
    liar = identity("liar")
    forged = chain(*(rig.says(Verdict(bytes(32), bytes(32), n, True, "", 0, 0, 0.0), liar) for n in range(5)))
    rig.port.inbox.append(control.LedgerArrived(0, forged))
    rig.turns(1)
    honest = chain(*(rig.says(Receipts(n, (settled(raw),) if n == 2 else ())) for n in range(9)))
    for _ in range(3):
        rig.clock.time += 20
        rig.turns(1)
        start = rig.port.asked[-1]
        rig.port.inbox.append(control.LedgerArrived(start, honest[start:]))
        rig.turns(1)
    assert rig.progress[-1].groups["verified"] == 1


def test_receipts_of_another_signer_settle_nothing(rig: VolunteerRig) -> None:
    raw = overdue(rig)
    forged = chain(rig.says(Receipts(0, (settled(raw, ReceiptState.REJECTED, "bad_tokens"),)), identity("liar")))
    rig.port.inbox += [control.LedgerArrived(0, forged), control.LedgerArrived(0, (b"garbage",))]
    rig.turns(1)
    assert rig.progress[-1].groups.get("rejected", 0) == 0
    assert rig.progress[-1].groups["delivered"] == 1
